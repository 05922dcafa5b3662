"""The values of a Dataset's samples, and what can be stored of them.

What is in a sample: its values, and the narrowest type that holds them. Whether two samples differ.
Up to where a Dataset makes the same of a sample each time: that could be stored once, before random
transforms.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

NameOf = Callable[[Any], str]
"""Returns the name of a transform, as the reader of a report knows it."""
SOME_ELEMENTS = 16
"""Fewer make no batch that matters."""
FEW_VALUES, MANY_ELEMENTS = 256, 1024
"""A channel of so many elements with so few different values was made of bytes."""


class Leaf(NamedTuple):
    """A value in a sample."""

    path: str
    """How to get it from the sample, in Python: `[0]`, `["image"]`; "" where it is the sample."""
    value: Any


def leaves(sample: Any, path: str = "") -> Iterator[Leaf]:
    """Yields the values in mappings, sequences and named tuples of a sample, in order."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from leaves(value, f"{path}[{key!r}]")
    elif isinstance(sample, tuple) and hasattr(sample, "_fields"):
        for name in sample._fields:
            yield from leaves(getattr(sample, name), f"{path}.{name}")
    elif isinstance(sample, (list, tuple)):
        for i, value in enumerate(sample):
            yield from leaves(value, f"{path}[{i}]")
    else:
        yield Leaf(path, sample)


def leaves_described(samples: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns for each place in the samples what is there.

    That is path, kind, dtype, the least and largest shape, mean bytes, and the narrowest dtype that
    holds all of its values.
    """
    places: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        for leaf in leaves(sample):
            places.setdefault(leaf.path, []).append(_leaf_described(leaf.value))
    found = []
    for path, seen in places.items():
        shapes = [each["shape"] for each in seen]
        same_rank = len({len(shape) for shape in shapes}) == 1
        narrow = [each["narrow"] for each in seen]
        found.append(
            {
                "path": path,
                "kinds": sorted({each["kind"] for each in seen}),
                "dtypes": sorted({each["dtype"] for each in seen}),
                "least_shape": [min(sizes) for sizes in zip(*shapes, strict=True)]
                if same_rank
                else None,
                "largest_shape": [max(sizes) for sizes in zip(*shapes, strict=True)]
                if same_rank
                else None,
                "bytes": sum(each["bytes"] for each in seen) / len(seen),
                "narrow": max(narrow, key=_width) if all(narrow) else "",
            }
        )
    return found


def _leaf_described(value: Any) -> dict[str, Any]:
    kind, dtype, size, narrow = type(value).__name__, "", sys.getsizeof(value), ""
    shape: tuple[int, ...] = ()
    if type(value).__module__.partition(".")[0] in ("torch", "torchvision") and hasattr(
        value, "element_size"
    ):
        kind, dtype, shape = "tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape)
        size, narrow = value.numel() * value.element_size(), narrowest(value)
    elif hasattr(value, "dtype") and hasattr(value, "nbytes") and hasattr(value, "shape"):  # NumPy
        kind, dtype, shape, size = "array", str(value.dtype), tuple(value.shape), int(value.nbytes)
        narrow = narrowest(value)
    elif hasattr(value, "getbands") and isinstance(getattr(value, "size", None), tuple):
        bands = value.getbands()
        kind, dtype, shape = "PIL image", value.mode, (value.size[1], value.size[0], len(bands))
        size = shape[0] * shape[1] * shape[2]
    elif isinstance(value, (str, bytes)):
        shape, size = (len(value),), len(value)
    elif isinstance(value, (bool, int, float)):
        size = 8
    return {"kind": kind, "dtype": dtype, "shape": shape, "bytes": size, "narrow": narrow}


INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")


def _width(dtype: str) -> int:
    return {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4}[dtype]


def narrowest(values: Any) -> str:
    """Returns the narrowest integer type that the values of a tensor or array were made of, or fit
    in; "" where that is no narrower, or cannot be told.

    Numbers with a fraction were made of bytes if each channel has few of them.
    """
    import torch

    try:
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        return ""
    if (
        tensor.numel() < SOME_ELEMENTS
        or tensor.dtype in (torch.uint8, torch.bool)
        or tensor.is_complex()
    ):
        return ""
    if tensor.is_floating_point():
        axis = next((a for a in (0, -1) if tensor.dim() >= 3 and tensor.shape[a] <= 4), None)
        channels = (
            [tensor.flatten()] if axis is None else [each.flatten() for each in tensor.unbind(axis)]
        )
        few = all(len(c) >= MANY_ELEMENTS and len(torch.unique(c)) <= FEW_VALUES for c in channels)
        return "uint8" if few else ""
    low, high = int(tensor.min()), int(tensor.max())
    for name in INTEGERS:
        limits = torch.iinfo(getattr(torch, name))
        if limits.min <= low and high <= limits.max:
            return name if _width(name) < tensor.element_size() else ""
    return ""


def different(first: Any, second: Any) -> list[str]:
    """Returns the paths at which two samples differ; NaN equals itself."""
    a, b = list(leaves(first)), list(leaves(second))
    if [leaf.path for leaf in a] != [leaf.path for leaf in b]:
        return [""]
    return [x.path for x, y in zip(a, b, strict=True) if not _equal(x.value, y.value)]


def _equal(a: Any, b: Any) -> bool:
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype
        return same and (
            torch.equal(a, b) or bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())
        )
    if hasattr(a, "tobytes"):  # an array or an image
        return bool(
            getattr(a, "shape", a.size) == getattr(b, "shape", b.size)
            and a.tobytes() == b.tobytes()
        )
    try:
        return bool(a == b) or repr(a) == repr(b)  # NaN equals itself
    except Exception:  # objects of the script's own that cannot be compared
        return True


TRIES = 8
"""Times that a transform is called on the same value, to see whether it is random."""
BY_NAME = re.compile("random|augment|jitter|mixup|cutmix", re.IGNORECASE)
"""In the names of transforms that may be random more seldom than `TRIES` calls show."""
ATTRIBUTES = ("transform", "transforms", "tfms", "image_transform", "augment")
INNER = ("dataset", "datasets")
"""Attributes in which a Subset and others hold the datasets that they read."""
MOST_INNER = 8
"""Of many datasets in one, so many are looked at."""
PAIRED = "StandardTransform"
"""The class in which torchvision pairs the transform of an image with that of its target."""


class Recorder:
    """Stands in for a transform, and keeps what it is called with."""

    def __init__(self, transform: Any, given: list[Any]) -> None:
        self._transform, self._given = transform, given

    def __call__(self, *values: Any, **named: Any) -> Any:
        if len(values) == 1 and not named:
            self._given.append(values[0])
        return self._transform(*values, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_transform"), name)


class Point(NamedTuple):
    """Where the transforms of a dataset begin to be random."""

    number: int
    """Of the attribute that holds them, among `transformed`."""
    names: list[str]
    same: int
    """How many of them, from the first one, make the same each time."""
    stages: list[list[Any]]
    """What some samples are before each of these, and after the last one."""


def storage_point(dataset: Any, chosen: Sequence[int], name_of: NameOf) -> dict[str, Any] | None:
    """Returns where the transforms of `dataset` begin to be random.

    That is their "names", how many in front are the "same" each time, and in "value" what samples
    are there, as `leaves_described` has it. None where that cannot be told.
    """
    try:
        point = random_from(dataset, chosen, name_of)
    except Exception:  # a transform that wants more than a value
        return None
    if point is None:
        return None
    return {
        "names": point.names,
        "same": point.same,
        "value": leaves_described(point.stages[-1])[0],
    }


def random_from(dataset: Any, chosen: Sequence[int], name_of: NameOf) -> Point | None:
    """Returns that as seen with the first sample of `chosen`, and the values of all of these.

    None where no attribute holds transforms that get a sample, or gets another value each time.
    """
    for number, (owner, name) in enumerate(transformed(dataset)):
        compose = getattr(owner, name)
        given: list[Any] = []
        try:
            setattr(owner, name, Recorder(compose, given))
            for index in (chosen[0], *chosen):
                dataset[index]
        finally:
            setattr(owner, name, compose)
        if len(given) != len(chosen) + 1:
            continue
        if different(given[0], given[1]):
            return None
        value = given[0]
        stages = [given[1:]]
        transforms = parts_of(compose)
        names = [name_of(transform) for transform in transforms]
        for transform, its_name in zip(transforms, names, strict=True):
            made = [transform(copy.copy(value)) for _ in range(TRIES)]
            value = made[0]
            if BY_NAME.search(its_name) or any(different(value, other) for other in made[1:]):
                break
            stages.append([transform(copy.copy(before)) for before in stages[-1]])
        return Point(number, names, len(stages) - 1, stages)
    return None


def parts_of(transform: Any) -> list[Any]:
    """Returns the transforms of a Compose, one after another; else the transform itself."""
    parts = getattr(transform, "transforms", None)
    return list(parts) if isinstance(parts, (list, tuple)) else [transform]


def transformed(dataset: Any) -> Iterator[tuple[Any, str]]:
    """Yields the objects, and the names of their attributes, that hold transforms."""
    left, seen = [dataset], set[int]()
    while left:
        owner = left.pop(0)
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name in ATTRIBUTES:
            with contextlib.suppress(Exception):  # a property of the script's own
                value = getattr(owner, name, None)
                if callable(value) and type(value).__name__ != PAIRED:
                    yield owner, name
        for name in INNER:
            inner = getattr(owner, name, None)
            if isinstance(inner, (list, tuple)):
                left += inner[:MOST_INNER]
            elif inner is not None:
                left.append(inner)


CROPPED = 8 / 7
"""Images are stored this much larger than what random crops are scaled to: 256 for 224 is usual."""


def side_of(transform: Any) -> int | None:
    """Returns the shorter side that images need, by the sizes of the transforms; None where none
    has one.
    """
    for each in parts_of(transform):
        size = getattr(each, "size", None)
        size = min(size) if isinstance(size, (list, tuple)) and size else size
        if isinstance(size, int):
            return round(size * CROPPED) if "Resized" in type(each).__name__ else size
    return None
