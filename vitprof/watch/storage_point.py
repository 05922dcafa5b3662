"""Up to where a Dataset makes the same of a sample each time: what could be stored once, before random transforms."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vitprof.watch.fetch_times import name_of
from vitprof.watch.sample_values import different, leaves_described

TRIES = 8
"""Times that a transform is called on the same value, to see whether it is random."""
BY_NAME = re.compile("random|augment|jitter|mixup|cutmix", re.IGNORECASE)
"""In the names of transforms that may be random more seldom than `TRIES` calls show."""
ATTRIBUTES = ("transform", "transforms", "tfms", "image_transform", "augment")
INNER = ("dataset", "datasets")
"""Attributes in which a Subset and others hold the datasets that they read."""


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


def storage_point(dataset: Any, chosen: Sequence[int]) -> dict[str, Any] | None:
    """Returns where the transforms of `dataset` begin to be random: their "names", how many of them in front are the
    "same" each time, as seen with the first sample of `chosen`, and in "value" what all of these are there, as
    `leaves_described` has it. None where there is no Compose that gets a sample, or gets another value each time.
    """
    for owner, name in _composes(dataset):
        compose, given = getattr(owner, name), list[Any]()
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
        value, same = given[0], 0
        for transform in compose.transforms:
            made = [transform(copy.copy(value)) for _ in range(TRIES)]
            if BY_NAME.search(name_of(transform)) or any(different(made[0], other) for other in made[1:]):
                break
            value, same = made[0], same + 1
        fixed = compose.transforms[:same]
        values = [functools.reduce(lambda made, transform: transform(made), fixed, each) for each in given[1:]]
        names = [name_of(transform) for transform in compose.transforms]
        return {"names": names, "same": same, "value": leaves_described(values)[0]}
    return None


def _composes(dataset: Any) -> Iterator[tuple[Any, str]]:
    """Yields the objects, and the names of their attributes, that hold a list of transforms to be called in turn."""
    left, seen = [dataset], set[int]()
    while left:
        owner = left.pop(0)
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name in ATTRIBUTES:
            with contextlib.suppress(Exception):  # a property of the script's own
                value = getattr(owner, name, None)
                if callable(value) and isinstance(getattr(value, "transforms", None), (list, tuple)):
                    yield owner, name
        for name in INNER:
            inner = getattr(owner, name, None)
            left += list(inner)[:8] if isinstance(inner, (list, tuple)) else [inner] if inner is not None else []
