"""Batches, loaders and datasets of a script answer with its own code, which may raise anything."""

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from vitprof.watch.batches import n_samples, n_values, tensors

IMAGES = torch.zeros(3, 2)


class Fields(NamedTuple):
    values: Tensor
    labels: Tensor


class Broken:
    """Fails at whatever is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: setup() first")


class BrokenClass:
    @property
    def __class__(self) -> Any:  # as a lazy proxy has
        raise RuntimeError("not loaded")


class BrokenDict(dict[str, Any]):
    def values(self) -> Any:
        raise OSError("the file is closed")


class BrokenList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("the file is closed")


class OtherValues:
    def values(self, column: str) -> Any:
        raise AssertionError


@dataclasses.dataclass
class OddProperty:
    images: Tensor

    @property
    def values(self) -> Any:
        raise AttributeError("only after collate()")


class HalfValues:
    """Gives a tensor, then fails."""

    def values(self) -> Iterator[Any]:
        yield IMAGES
        raise ValueError("the rest is gone")


WITHOUT = {
    "Series": pd.Series([1.0, 2.0]),
    "DataFrame": pd.DataFrame({"a": [1.0, 2.0]}),
    "Index": pd.Index(["a", "b"]),
    "array": np.zeros(3),
    "fails": Broken(),
    "class fails": BrokenClass(),
    "dict fails": BrokenDict(a=1),
    "list fails": BrokenList([1]),
    "values with arguments": OtherValues(),
    "property fails": OddProperty(IMAGES),
    "half": HalfValues(),
    "a class": dict,
    "text": "values",
    "None": None,
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_what_has_no_method_values_has_no_tensors_and_ends_nothing(kind: str) -> None:
    assert list(tensors(WITHOUT[kind])) == []
    assert n_samples([WITHOUT[kind], IMAGES]) == 3
    assert n_values({"meta": WITHOUT[kind], "x": IMAGES}) == 6
    assert math.isnan(n_values(WITHOUT[kind]))


@pytest.mark.parametrize(
    "batch",
    [
        Fields(IMAGES, torch.zeros(3)),
        torch.max(torch.zeros(3, 2), dim=1),  # its `values` is a tensor
        collections.OrderedDict(x=IMAGES),
        collections.UserDict({"x": IMAGES}),
        {"frame": pd.DataFrame({"a": [1]}), "x": [(IMAGES,)]},
    ],
)
def test_tensors_are_found_in_mappings_and_named_tuples(batch: Any) -> None:
    assert n_samples(batch) == 3


def test_a_batch_that_contains_itself_has_an_end() -> None:
    batch: list[Any] = [IMAGES]
    batch.append(batch)
    found = list(tensors(batch))
    assert found
    assert all(each is IMAGES for each in found)
