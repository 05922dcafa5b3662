"""A Dataset up to where its samples are the same each time: what is stored, and what is left."""

import contextlib
import copy
import functools
import io
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vitprof.forms.script.opened_files import opening
from vitprof.forms.script.sample_values import (
    NameOf,
    different,
    parts_of,
    random_from,
    transformed,
)
from vitprof.forms.stored import Encoded, flattened, rebuilt, to_bytes

QUALITY = 90
"""Of JPEG files."""
CHECK_EVERY = 32
"""Of so many files one is decoded, to see that it gives the image that the Dataset returns."""


class Cut:
    """A Dataset up to where its samples are the same each time: the `same` first of its transforms
    are applied.
    """

    words = "whole"
    """Where samples are stored on their way through the Dataset: "before ToTensor"."""

    def __init__(self, dataset: Any, number: int | None, same: int = 0) -> None:
        """`number`: which of `transformed` holds the transforms; None: samples are stored whole."""
        self.dataset = dataset
        self.number = number
        self.same = same
        self.at = 0
        """Number of the value, in the order of a sample's values, that is yet to be transformed."""
        self._owner: Any = None
        self._transform: Any = None
        if number is not None:
            self._owner, self._name = list(transformed(dataset))[number]
            self._transform = getattr(self._owner, self._name)

    def __len__(self) -> int:
        return len(self.dataset)

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
        """Returns a sample as it is stored.

        Raises `ValueError` where what is transformed is not a value of it.
        """
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
    """The same, where images are stored as the files that the Dataset reads.

    Raises `ValueError` where one is not.
    """

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

        scale = self.side / min(value.size)
        if scale < 1:
            size = [round(scale * each) for each in value.size]
            value = value.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        file = io.BytesIO()
        value.save(file, "JPEG", quality=QUALITY)
        encoded = Encoded(file.getvalue())
        encoded.mode = value.mode
        return encoded


# where to cut


def cut_of(dataset: Any, chosen: Sequence[int], name_of: NameOf) -> tuple[Cut, Cut | None]:
    """Returns `dataset` up to where it is to be stored, and the same before all of its transforms
    (None where that is not known).

    Raises `ValueError` where its samples are random in another way.
    """
    with contextlib.suppress(Exception):  # a transform that wants more than a value
        point = random_from(dataset, chosen, name_of)
        if point is not None:
            before = Cut(dataset, point.number)
            if not _is_as_the_script_has_it(before, chosen):
                raise ValueError
            sizes = [sum(len(to_bytes(value)) for value in values) for values in point.stages]
            smallest = max(range(len(sizes)), key=lambda stage: (-sizes[stage], stage))
            for same in (smallest, 0):
                cut = Cut(dataset, point.number, same)
                if _is_as_the_script_has_it(cut, chosen):
                    names = [*(f"before {name}" for name in point.names), "after all transforms"]
                    cut.words = names[same]
                    before.words = names[0]
                    return cut, before
    whole = Cut(dataset, None)
    if _is_as_the_script_has_it(whole, chosen):
        return whole, None
    raise ValueError(
        "its samples differ each time they are read, and not because of one transform alone"
    )


def _is_as_the_script_has_it(cut: Cut, chosen: Sequence[int]) -> bool:
    """Returns whether what is stored of samples is the same each time, and gives the uncut ones,
    from the same random numbers.
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
