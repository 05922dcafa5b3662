"""Stores samples of a script's Dataset in other forms, once the script has made its first step."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitprof.forms import FORMS, is_installed, module_of, stored
from vitprof.forms.contract import Names, Writer
from vitprof.forms.script.cut import Cut, FilesOf, Smaller, cut_of
from vitprof.forms.script.dataset import spread
from vitprof.forms.script.opened_files import opening
from vitprof.forms.script.sample_values import NameOf, different, side_of
from vitprof.forms.stored import Encoded, flattened, to_bytes
from vitprof.forms.values import from_bytes

PARTS = 10
"""Parts that a plan stores its samples in: the time for each gives the spread."""
COMPARED = 8
"""Samples that are compared with those of the script's Dataset."""
ROOM = 1.1
"""How many times more must be free on the drive than the values take."""
MOST_SAID = 600
"""Characters of a reason; a path of some hundred may be in it."""
FULL_BYTES = 1 << 20
"""A drive with less room than this is full. Some libraries say so in words of their own:
"mdb_txn_commit: Input/output error", "basic_ios::clear"."""
PART_BYTES = 512e6
"""The most bytes of a part: some forms hold one in memory as it is written."""


def stored_in_forms(
    dataset: Any, request: Mapping[str, Any], name_of: NameOf, keys: Sequence[Any] = ()
) -> dict[str, Any]:
    """Stores samples of `dataset`, and returns what came of it, for JSON.

    `request`: "directory", names of "forms", "samples" (None: all), "side" of JPEG files in pixels
    (None: as the transforms need). `keys`: indices that its sampler gives, where they are no numbers.
    Raises `ValueError`.
    """
    import torch

    if keys:
        raise ValueError(_why_by_number(keys[0]))
    # PyTorch gives it a `__getitem__`, which raises an error, and it may have a length.
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    has_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if is_iterable or not has_index:
        raise ValueError("its samples have no index, so they can only be read in its own order")
    n = len(dataset)
    chosen = range(n) if request["samples"] is None else spread(n, request["samples"])
    directory = Path(request["directory"])
    opened: dict[str, int] = {}
    with opening() as seen:
        compared = [chosen[i] for i in spread(len(chosen), COMPARED)]
        cut, before = cut_of(dataset, compared, name_of)
    if request["samples"] is None and _holds(seen, directory):
        raise ValueError(f"{directory} is in the folder of its files; choose another one")
    forms = {name: _stored(name, cut, before, chosen, request, opened) for name in request["forms"]}
    return {"cut": cut.words, "n": len(chosen), "samples": n, "files": opened, "forms": forms}


def _why_by_number(key: Any) -> str:
    """Returns why samples are not stored that a sampler asks for by `key`, and what to do.

    Which keys there are is not known: a sampler draws some of them, and may draw one twice.
    """
    asked = f"its sampler asks for samples by {repr(key)[:60]}, and not by number"
    to_do = "have the sampler give a number for each sample"
    if isinstance(key, (str, bytes)):
        to_do = (
            "keep a list of the names in the Dataset, have the sampler give positions in it, and "
            "look the name up in __getitem__"
        )
    return f"{asked}: stored samples have numbers alone; {to_do}"


def _stored(
    name: str,
    cut: Cut,
    before: Cut | None,
    chosen: Sequence[int],
    request: Mapping[str, Any],
    read: dict[str, int],
) -> dict[str, Any]:
    """Returns how samples are stored in a form; adds the files that they were read from, and their
    bytes, to `read`.
    """
    try:
        if not is_installed(name):
            package = FORMS[name].wheel or FORMS[name].package
            return {"why": f"{package} is not installed in the script's Python"}
        module = module_of(name)
        used = _prepared(name, cut, before, chosen, request["side"])
        plan = request["samples"] is not None
        folder = Path(request["directory"]) / (name if plan else "")
        return _written(used, module, folder, chosen, read, plan=plan, form=name)
    except Exception as error:  # of any library
        # a message of ours says enough
        words = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        return {"why": " ".join(words.split())[:MOST_SAID]}


def _prepared(
    name: str,
    cut: Cut,
    before: Cut | None,
    chosen: Sequence[int],
    side: int | None,
) -> Cut:
    """Returns the samples as they go into the form.

    Raises `ValueError` where they do not fit it.
    """
    values: list[Any] = []
    if before is not None:
        flattened(before[chosen[0]], values)
    image = (
        values[before.at] if before is not None and hasattr(values[before.at], "getbands") else None
    )
    if name == "jpeg":
        if before is None or image is None or image.mode not in ("L", "RGB", "CMYK"):
            raise ValueError("its samples are no images before they are transformed")
        smaller = Smaller(before.dataset, before.number)
        smaller.side = side or side_of(before.rest) or Smaller.side
        smaller.words = before.words
        if min(image.size) <= smaller.side:
            raise ValueError(f"its images are not larger than {smaller.side} pixels")
        return smaller
    if FORMS[name].keeps_files and before is not None and image is not None:
        files = FilesOf(before.dataset, before.number)
        files.words = before.words
        with contextlib.suppress(Exception):  # pixels, then
            for index in chosen[:COMPARED]:
                files[index]
            return files
    return cut


def _written(
    cut: Cut,
    module: Any,
    folder: Path,
    chosen: Sequence[int],
    read: dict[str, int],
    *,
    plan: bool,
    form: str,
) -> dict[str, Any]:
    seconds: list[float] = []

    def timed(to: Path, names: Names) -> Writer:
        return TimedWriter(module.Writer(to, names), seconds)

    each = _sample_bytes(cut, [chosen[i] for i in spread(len(chosen), COMPARED)])
    if plan:
        part = -(-len(chosen) // PARTS)
    else:
        part = max(1, min(stored.PART, round(PART_BYTES / max(each, 1.0))))
    earlier = min(len(chosen), part * len(list(folder.glob("part-*"))))
    needed = each * (len(chosen) - earlier)
    there = next(above for above in folder.absolute().parents if above.is_dir())
    # before its room is looked at: where nothing can be made, as in /proc, there is none
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(there).free / ROOM
    if needed > free:
        raise ValueError(
            f"there is no room: it takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
    what = f"{form}: {cut.what}"
    with opening() as opened, _said_if_full(there):
        stored.convert(cut, folder, timed, module.Reader, chosen, cut.at, part, what)
    for path in opened:
        with contextlib.suppress(OSError):
            read[path] = os.path.getsize(path)
    if plan:
        _forget(opened)
    samples = stored.Samples(folder, module.Reader)
    for number in spread(len(chosen), COMPARED):
        expected = list[Any]()
        tree = stored.flattened(cut[chosen[number]], expected)
        pairs = zip(samples.description.kinds, expected, strict=True)
        values = [from_bytes(kind, v) if isinstance(v, Encoded) else v for kind, v in pairs]
        if different(stored.rebuilt(tree, values), samples[number]):
            raise ValueError(f"sample {chosen[number]} is another one when it is read back")
    return {
        "why": "",
        "cut": cut.words,
        "number": cut.number,
        "same": cut.same,
        "payload": type(cut).__name__,
        "seconds": seconds,
        "earlier": earlier,
        "bytes": sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()),
    }


@contextlib.contextmanager
def _said_if_full(drive: Path) -> Iterator[None]:
    """Where the drive is full, says so in place of whatever a library raises in the block."""
    try:
        yield
    except Exception as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if is_full or shutil.disk_usage(drive).free < FULL_BYTES:
            raise ValueError(
                f"the drive of {drive} is full; make room, and the same command goes on"
            ) from error
        raise


class TimedWriter:
    """A writer of a form that notes the seconds for each sample, with the time to read it."""

    def __init__(self, writer: Writer, seconds: list[float]) -> None:
        """`seconds`: the mean of this writer's samples is added to it as they are finished."""
        self._writer = writer
        self._seconds = seconds
        self._began_s = time.perf_counter()
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        self._writer.add(values)
        self._n += 1

    def finish(self) -> None:
        self._writer.finish()
        self._seconds.append((time.perf_counter() - self._began_s) / max(1, self._n))

    def close(self) -> None:
        self._writer.close()


def _sample_bytes(cut: Cut, indices: Sequence[int]) -> float:
    sizes = []
    for index in indices:
        values: list[Any] = []
        flattened(cut[index], values)
        sizes.append(sum(len(to_bytes(value)) for value in values))
    return sum(sizes) / len(sizes)


def _holds(paths: Sequence[str], directory: Path) -> bool:
    """Returns whether the folder that all of these files are in, if there are several, holds
    `directory`.
    """
    return len(set(paths)) > 1 and directory.resolve().is_relative_to(os.path.commonpath(paths))


def _forget(paths: Sequence[str]) -> None:
    """Drops files from the page cache, so that the next form's conversion reads them from the
    drive, too.
    """
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
