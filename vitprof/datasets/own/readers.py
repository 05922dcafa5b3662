"""Opens a user's own data set: one reader for each kind."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from vitprof import errors
from vitprof.datasets.own import functions, image_files, kinds, specs
from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, is_remote, wrong
from vitprof.forms import FORMS, module_of, stored_set
from vitprof.forms.description import DESCRIPTION
from vitprof.forms.gate import Gate, NotAdmitted
from vitprof.forms.image_files import SUFFIXES

FORM_OF = {"hf": "arrow"}
"""Kind of a data set -> its form, where that has another name."""
# Others are forms of `vitprof.forms`.
READERS: dict[str, Callable[[str, Spec, Gate], Listing]] = {
    "folder": image_files.folder_set,
    "csv": image_files.csv_set,
    "python": functions.python_set,
}


def form_set(text: str, spec: Spec, gate: Gate) -> Listing:
    """Reads a file of a form, or a folder of samples that `convert` stored in it."""

    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    module = module_of(FORM_OF.get(spec.kind, spec.kind))
    if _holds_stored_samples(spec):
        return listing_of(stored_set.found_in(Path(spec.path), module.Reader, refuse, gate), gate)
    if not hasattr(module, "find"):
        refuse("it is no folder of samples that `convert` stored")
    return listing_of(module.find(spec.path, spec.options, refuse, gate), gate)


def _holds_stored_samples(spec: Spec) -> bool:
    return spec.kind in FORMS and os.path.isfile(os.path.join(spec.path, DESCRIPTION))


def _reader_of(spec: Spec) -> Callable[[str, Spec, Gate], Listing]:
    if _holds_stored_samples(spec):
        return form_set
    return READERS.get(spec.kind, form_set)


def _admit(spec: Spec, gate: Gate) -> None:
    """Raises unless the files that a library opens for `spec` may be read. What images are is told
    later, one by one, and shards once their pattern is.
    """
    is_file = specs.needs_library(spec) or spec.kind == "csv"
    if not is_file and not _holds_stored_samples(spec):
        return
    if os.path.isdir(spec.path):
        gate.admit_all(Path(spec.path))
    else:
        gate.admit(spec.path)


def open_spec(
    text: str,
    allowed: Sequence[Path] | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Listing:
    """Returns the samples of what `text` names.

    With `allowed`, only what is below these folders is read; links that lead out of them are not
    followed. `alive` is called as listing goes on. Raises `ConfigError` about the spec, with what to
    write.
    """
    spec = specs.parse(text)
    gate = Gate(None if allowed is None else tuple(allowed), alive)
    try:
        found = _opened(text, spec, gate)
    except ImportError as error:
        raise wrong(text, errors.missing_package(error)) from error
    except errors.VitprofError:
        raise
    except MemoryError as error:
        raise wrong(text, "it needs more memory than there is for it; it may be damaged") from error
    except NotAdmitted as error:
        raise wrong(text, f"{error}") from error
    except Exception as error:  # parsers raise anything on a damaged file
        raise wrong(text, f"it cannot be read ({errors.one_line(error)})") from error
    if not any(sample.train for sample in found.samples):
        found.close()
        _ensure_kind(text, spec)
        why = "".join(f"; {note}" for note in found.notes)
        raise wrong(text, f"no image was found in it ({', '.join(sorted(SUFFIXES))}){why}")
    return found


def _opened(text: str, spec: Spec, gate: Gate) -> Listing:
    is_a_path = spec.kind not in ("python", "webdataset") and not is_remote(spec.path)
    if gate.roots is not None:
        specs.ensure_inside(text, spec, gate)
    if is_a_path and not os.path.exists(spec.path):
        raise wrong(text, f"{spec.path} does not exist")
    _admit(spec, gate)
    try:
        return _reader_of(spec)(text, spec, gate)
    except (MemoryError, NotAdmitted):
        raise
    except Exception as error:
        # What there is says more than what a library of another kind stumbles over, or than that the
        # library is missing.
        _ensure_kind(text, spec, error)
        raise


def _ensure_kind(text: str, spec: Spec, error: Exception | None = None) -> None:
    """Raises `ConfigError` where the path of `spec` holds what is of another kind."""
    if spec.kind == "python" or is_remote(spec.path):
        return
    why = kinds.why_not(spec)
    if why:
        raise wrong(text, why) from error
