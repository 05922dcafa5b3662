"""Stores samples of a script's Dataset in other forms, once the script has made its first step, and reads them in its
place in trials.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from vitprof.forms import FORMS, is_installed, module_of, stored
from vitprof.forms.contract import Names, Writer
from vitprof.forms.script.dataset import spread
from vitprof.forms.script.opened_files import opening
from vitprof.forms.script.sample_values import (
    different,
    parts_of,
    random_from,
    side_of,
    transformed,
)
from vitprof.forms.stored import Encoded, flattened, rebuilt, to_bytes
from vitprof.forms.values import from_bytes
from vitprof.watch.fetch_times import name_of
from vitprof.watch.proxy import Proxy

PARTS = 10
"""Parts that a plan stores its samples in: the time for each gives the spread."""
COMPARED = 8
"""Samples that are compared with those of the script's Dataset."""
QUALITY = 90
ROOM = 1.1
"""How many times more must be free on the drive than the values take."""
PART_BYTES = 512e6
"""The most bytes of a part: some forms hold one in memory as it is written."""
CHECK_EVERY = 32
"""Of so many files one is decoded, to see that it gives the image that the Dataset returns."""


class Cut:
    """A Dataset up to where its samples are the same each time: the `same` first of its transforms are applied."""

    def __init__(self, dataset: Any, number: int | None, same: int = 0) -> None:
        """`number`: which of `transformed` holds the transforms; None: samples are stored whole."""
        self.dataset, self.number, self.same = dataset, number, same
        self.at = 0
        """Number of the value, in the order of a sample's values, that is yet to be transformed."""
        self._owner: Any = None
        self._transform: Any = None
        if number is not None:
            self._owner, self._name = list(transformed(dataset))[number]
            self._transform = getattr(self._owner, self._name)

    def __len__(self) -> int:
        return len(self.dataset)

    words = "whole"
    """Where samples are stored on their way through the Dataset: "before ToTensor"."""

    @property
    def what(self) -> str:
        """Returns what it does to samples: an attempt that did something else cannot go on."""
        applied = parts_of(self._transform)[: self.same] if self.same else []
        return re.sub(" at 0x[0-9a-f]+", "", f"{type(self).__name__} {self.number} {applied}")

    @property
    def rest(self) -> Callable[[Any], Any] | None:
        """Returns the other transforms, as one; None where there are none."""
        whole: Any = self._transform
        if whole is not None and self.same:
            left = parts_of(whole)[self.same :]
            if not left:  # also of a transform that has no parts
                return None
            whole = copy.copy(whole)
            whole.transforms = left
        return cast("Callable[[Any], Any] | None", whole)

    def __getitem__(self, index: int) -> Any:
        """Returns a sample as it is stored. Raises `ValueError` where what is transformed is not a value of it."""
        if self._transform is None:
            return self.dataset[index]
        setattr(self._owner, self._name, _First(parts_of(self._transform)[: self.same]))
        try:
            sample = self.dataset[index]
        finally:
            setattr(self._owner, self._name, self._transform)
        values: list[Any] = []
        tree = flattened(sample, values)
        places = [i for i, value in enumerate(values) if isinstance(value, _Placed)]
        if len(places) != 1:
            raise ValueError("what its transform returns is not a value of the sample")
        self.at = places[0]
        values[self.at] = self.changed(values[self.at].value)
        return rebuilt(tree, values)

    def changed(self, value: Any) -> Any:
        """Returns the value at that place as it is stored."""
        return value


class _Placed:
    """Marks the value that the transforms get, so that it is found in the sample."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _First:
    def __init__(self, transforms: Sequence[Any]) -> None:
        self._transforms = transforms

    def __call__(self, value: Any) -> _Placed:
        return _Placed(
            functools.reduce(lambda made, transform: transform(made), self._transforms, value)
        )


class FilesOf(Cut):
    """The same, where images are stored as the files that the Dataset reads. Raises `ValueError` where one is not."""

    def __getitem__(self, index: int) -> Any:
        self._checks = index % CHECK_EVERY == 0
        with opening() as self._opened:
            return super().__getitem__(index)

    def changed(self, value: Any) -> Any:
        from PIL import Image

        encoded = Encoded(Path(self._opened[-1]).read_bytes() if self._opened else b"")
        encoded.mode = value.mode
        if (
            self._checks
            and Image.open(io.BytesIO(encoded)).convert(value.mode).tobytes() != value.tobytes()
        ):
            raise ValueError("an image is not what its file gives")
        return encoded


class Smaller(Cut):
    """The same, where images are JPEG files with a shorter side of `side` pixels."""

    side = 256

    @property
    def what(self) -> str:
        return f"{super().what} {self.side}"

    def changed(self, value: Any) -> Any:
        from PIL import Image

        if (scale := self.side / min(value.size)) < 1:
            size = [round(scale * each) for each in value.size]
            value = value.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        value.save(file := io.BytesIO(), "JPEG", quality=QUALITY)
        encoded = Encoded(file.getvalue())
        encoded.mode = value.mode
        return encoded


# where to cut


def cut_of(dataset: Any, chosen: Sequence[int]) -> tuple[Cut, Cut | None]:
    """Returns `dataset` up to where it is to be stored, and the same before all of its transforms (None where that is
    not known). Raises `ValueError` where its samples are random in another way.
    """
    with contextlib.suppress(Exception):  # a transform that wants more than a value
        if (point := random_from(dataset, chosen, name_of)) is not None:
            before = Cut(dataset, point.number)
            if not _is_as_the_script_has_it(before, chosen):
                raise ValueError
            sizes = [sum(len(to_bytes(value)) for value in values) for values in point.stages]
            smallest = max(range(len(sizes)), key=lambda stage: (-sizes[stage], stage))
            for same in (smallest, 0):
                cut = Cut(dataset, point.number, same)
                if _is_as_the_script_has_it(cut, chosen):
                    names = [*(f"before {name}" for name in point.names), "after all transforms"]
                    cut.words, before.words = names[same], names[0]
                    return cut, before
    whole = Cut(dataset, None)
    if _is_as_the_script_has_it(whole, chosen):
        return whole, None
    raise ValueError(
        "its samples differ each time they are read, and not because of one transform alone"
    )


def _is_as_the_script_has_it(cut: Cut, chosen: Sequence[int]) -> bool:
    """Returns whether what is stored of samples is the same each time, and gives the uncut ones, from the same random
    numbers.
    """
    return not any(
        different(cut[index], cut[index]) or _differs(cut, index, cut.rest) for index in chosen
    )


def _differs(cut: Cut, index: int, rest: Callable[[Any], Any] | None) -> bool:
    with _seeded():
        expected = cut.dataset[index]
    with _seeded():
        values: list[Any] = []
        tree = flattened(cut[index], values)
        if rest is not None:
            values[cut.at] = rest(values[cut.at])
    return bool(different(expected, rebuilt(tree, values)))


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


# storing


def stored_in_forms(dataset: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Stores samples of `dataset`, and returns what came of it, for JSON. `request`: "directory", names of "forms",
    "samples" (None: all), "side" of JPEG files in pixels (None: as the
    transforms need). Raises `ValueError`.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError("its samples have no index, so they can only be read in its own order")
    n = len(dataset)
    chosen = range(n) if request["samples"] is None else spread(n, request["samples"])
    directory, opened = Path(request["directory"]), dict[str, int]()
    with opening() as seen:
        cut, before = cut_of(dataset, [chosen[i] for i in spread(len(chosen), COMPARED)])
    if request["samples"] is None and _holds(seen, directory):
        raise ValueError(f"{directory} is in the folder of its files; choose another one")
    forms = {name: _stored(name, cut, before, chosen, request, opened) for name in request["forms"]}
    return {"cut": cut.words, "n": len(chosen), "samples": n, "files": opened, "forms": forms}


def _stored(
    name: str,
    cut: Cut,
    before: Cut | None,
    chosen: Sequence[int],
    request: Mapping[str, Any],
    read: dict[str, int],
) -> dict[str, Any]:
    """Returns how samples are stored in a form; adds the files that they were read from, and their bytes, to `read`."""
    try:
        if not is_installed(name):
            return {"why": f"{FORMS[name].package} is not installed in the script's Python"}
        module = module_of(name)
        used = _prepared(name, cut, before, chosen, request["side"])
        folder = Path(request["directory"]) / (
            name if (plan := request["samples"] is not None) else ""
        )
        return _written(used, module, folder, chosen, read, plan=plan)
    except Exception as error:  # of any library
        return {"why": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _prepared(
    name: str,
    cut: Cut,
    before: Cut | None,
    chosen: Sequence[int],
    side: int | None,
) -> Cut:
    """Returns the samples as they go into the form. Raises `ValueError` where they do not fit it."""
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
        smaller.side, smaller.words = side or side_of(before.rest) or Smaller.side, before.words
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
    cut: Cut, module: Any, folder: Path, chosen: Sequence[int], read: dict[str, int], *, plan: bool
) -> dict[str, Any]:
    seconds: list[float] = []

    def timed(to: Path, names: Names) -> Writer:
        return TimedWriter(module.Writer(to, names), seconds)

    each = _sample_bytes(cut, [chosen[i] for i in spread(len(chosen), COMPARED)])
    part = (
        -(-len(chosen) // PARTS)
        if plan
        else max(1, min(stored.PART, round(PART_BYTES / max(each, 1.0))))
    )
    needed = each * len(chosen)
    there = next(each for each in folder.absolute().parents if each.is_dir())
    if needed > (free := shutil.disk_usage(there).free / ROOM):
        raise ValueError(
            f"there is no room: it takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
    with opening() as opened:
        stored.convert(cut, folder, timed, chosen, cut.at, part, cut.what)
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
        "bytes": sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()),
    }


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
    """Returns whether the folder that all of these files are in, if there are several, holds `directory`."""
    return len(set(paths)) > 1 and directory.resolve().is_relative_to(os.path.commonpath(paths))


def _forget(paths: Sequence[str]) -> None:
    """Drops files from the page cache, so that the next form's conversion reads them from the drive, too."""
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# trials


class StoredSamples(Proxy):
    """A proxy of a dataset whose samples are those of a plan, in a form or as the dataset reads them, over and over."""

    def __init__(self, dataset: Any, given: Mapping[str, Any]) -> None:
        """`given`: the "form" (empty: as the dataset reads them), its "folder", "n" samples of "samples",
        and where the dataset is cut: "number", "same".
        """
        super().__init__(dataset)
        if len(dataset) != given["samples"]:
            raise ValueError(
                f"the plan's Dataset had {given['samples']} samples, this one has {len(dataset)}"
            )
        self._vitprof_given, self._vitprof_chosen = (
            dict(given),
            spread(given["samples"], given["n"]),
        )
        self._vitprof_read: Any = None

    def __reduce_ex__(self, _: Any) -> tuple[Any, tuple[Any, ...]]:
        return StoredSamples, (self._vitprof_wrapped, self._vitprof_given)

    def __len__(self) -> int:
        return len(self._vitprof_wrapped)

    def __getitem__(self, index: Any) -> Any:
        given, number = self._vitprof_given, index % len(self._vitprof_chosen)
        if not given["form"]:
            return self._vitprof_wrapped[self._vitprof_chosen[number]]
        if (
            self._vitprof_read is None
        ):  # in each process, as some libraries' threads do not survive a fork
            rest = Cut(self._vitprof_wrapped, given["number"], given["same"]).rest
            reader = module_of(given["form"]).Reader
            self._vitprof_read = stored.Samples(given["folder"], reader, rest)
        return self._vitprof_read[number]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples of a whole batch: PyTorch calls this method where a dataset has it."""
        together = getattr(self._vitprof_wrapped, "__getitems__", None)
        if together is None or self._vitprof_given["form"]:
            return [self[index] for index in indices]
        n = len(self._vitprof_chosen)
        return list(together([self._vitprof_chosen[index % n] for index in indices]))
