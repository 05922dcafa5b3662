"""Opens a user's own data set: one reader for each kind."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from vitprof import errors
from vitprof.datasets.own import functions, image_files, specs
from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, is_remote, wrong
from vitprof.forms import FORMS, module_of, stored_set
from vitprof.forms.description import DESCRIPTION
from vitprof.forms.folder import links
from vitprof.forms.image_files import SUFFIXES

FORM_OF = {"hf": "arrow"}
"""Kind of a data set -> its form, where that has another name."""
NETWORK_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
}
"""Module -> its errors that are no `OSError`."""
# Others are forms of `vitprof.forms`.
READERS: dict[str, Callable[[str, Spec], Listing]] = {
    "folder": image_files.folder_set,
    "csv": image_files.csv_set,
    "python": functions.python_set,
}


def form_set(text: str, spec: Spec) -> Listing:
    """Reads a file of a form, or a folder of samples that `convert` stored in it."""

    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    module = module_of(FORM_OF.get(spec.kind, spec.kind))
    if _holds_stored_samples(spec):
        return listing_of(stored_set.found_in(Path(spec.path), module.Reader, refuse))
    if not hasattr(module, "find"):
        refuse("it is no folder of samples that `convert` stored")
    return listing_of(module.find(spec.path, spec.options, refuse))


def _holds_stored_samples(spec: Spec) -> bool:
    return spec.kind in FORMS and (Path(spec.path) / DESCRIPTION).is_file()


def _reader_of(spec: Spec) -> Callable[[str, Spec], Listing]:
    if _holds_stored_samples(spec):
        return form_set
    return READERS.get(spec.kind, form_set)


def _failures() -> tuple[type[Exception], ...]:
    """Returns what reading raises: errors of libraries of networks, too, where they were imported."""
    found: list[type[Exception]] = [OSError, ValueError, KeyError, TypeError]
    # s3fs and fsspec pass some of these on as they are.
    for name, kinds in NETWORK_ERRORS.items():
        module = sys.modules.get(name)
        if module is not None:
            found += [getattr(module, kind) for kind in kinds]
    return tuple(found)


def open_spec(text: str, allowed: Sequence[Path] | None = None) -> Listing:
    """Returns the samples of what `text` names.

    With `allowed`, only what is below these folders is read; links that lead out of them are not
    followed. Raises `ConfigError` about the spec, with what to write.
    """
    spec = specs.parse(text)
    is_a_path = spec.kind not in ("python", "webdataset") and not is_remote(spec.path)
    if allowed is not None:
        specs.ensure_inside(text, spec, allowed)
    elif is_a_path and not Path(spec.path).exists():
        raise wrong(text, f"{spec.path} does not exist")
    try:
        found = _reader_of(spec)(text, spec)
    except ImportError as error:
        why = errors.one_line(error)
        if error.name:
            why = f"the package {error.name} is missing: pip install {error.name}"
        raise wrong(text, why) from error
    except errors.ConfigError:
        raise
    except _failures() as error:
        raise wrong(text, f"it cannot be read ({errors.one_line(error)})") from error
    if allowed is not None and found.in_place:
        inside = [sample for sample in found.samples if specs.inside(sample.key, allowed)]
        left = len(found.samples) - len(inside)
        if left:
            found.notes.append(f"{links(left)} out of the folders that may be read: left out")
        found.samples = inside
    if not any(sample.train for sample in found.samples):
        found.close()
        raise wrong(text, f"no image was found in it ({', '.join(sorted(SUFFIXES))})")
    return found
