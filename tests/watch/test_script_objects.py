"""Batches, loaders and datasets of a script answer with its own code, which may raise anything."""

import collections
import dataclasses
import gc
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from vitprof.watch.events import Buffer
from vitprof.watch.loader_facts import generic_facts, loader_facts
from vitprof.watch.patches import Recorder
from vitprof.watch.patches.batch_sizes import BatchSizes
from vitprof.watch.patches.waits import arrays
from vitprof.watch.script_objects import ByIdentity
from vitprof.watch.tensors import tensors

IMAGES = torch.zeros(3, 2)


def n_samples(batch: Any) -> float:
    return BatchSizes().of(batch)[0]


def n_values(batch: Any) -> float:
    return BatchSizes().of(batch)[2]


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


class Sized:
    """A dataset whose `len` does what it is told."""

    def __init__(self, n: Any) -> None:
        self.n = n

    def __len__(self) -> Any:
        if isinstance(self.n, Exception):
            raise self.n
        return self.n


class Loader:
    """Stands in for a DataLoader."""

    def __init__(self, **its: Any) -> None:
        self.__dict__.update(its)


@pytest.mark.parametrize(
    "n",
    [
        OSError("not mounted"),
        AttributeError("call setup()"),
        RuntimeError("closed"),
        KeyError("train"),
        AssertionError(),
        NotImplementedError(),
        TypeError("it is iterable"),
        -1,
        2.5,
        "7",
        None,
        2**70,
    ],
    ids=repr,
)
def test_a_dataset_without_a_usable_length_ends_nothing(n: Any) -> None:
    assert loader_facts(Loader(dataset=Sized(n)))["n_samples"] is None
    assert loader_facts(Loader(dataset=Sized(7)))["n_samples"] == 7


class Halving(torch.utils.data.Sampler[list[int]]):
    """Draws its batches to know how many there are."""

    drawn = False

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn = True
        yield from ([i, i + 1] for i in torch.randperm(6)[:3].tolist())

    def __len__(self) -> int:
        return len(list(self))


@pytest.mark.parametrize(
    ("arguments", "n_batches"),
    [
        ({}, 4),
        ({"drop_last": True}, 3),
        ({"sampler": torch.utils.data.SubsetRandomSampler(range(4))}, 2),
        ({"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 7, 40)}, 20),
        ({"batch_size": None}, 7),
    ],
    ids=["as usual", "drop_last", "a part", "weighted", "batches"],
)
def test_an_epoch_is_as_long_as_its_sampler(arguments: dict[str, Any], n_batches: int) -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(7))
    loader = torch.utils.data.DataLoader(dataset, **({"batch_size": 2} | arguments))
    assert loader_facts(loader)["epoch_batches"] == n_batches


def test_a_sampler_of_the_scripts_own_is_not_asked() -> None:
    """Its random numbers would be others than without vitprof."""
    sampler = Halving()
    dataset = torch.utils.data.TensorDataset(torch.zeros(7))
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
    assert loader_facts(loader)["epoch_batches"] is None
    assert not sampler.drawn


class Many(torch.utils.data.IterableDataset[int]):
    """May give others than it says, and each worker all of them."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(9))

    def __len__(self) -> int:
        return 8


def test_what_an_iterable_dataset_says_of_its_length_is_no_epoch() -> None:
    loader = torch.utils.data.DataLoader(Many(), batch_size=2)
    assert loader_facts(loader)["epoch_batches"] is None


class Named:
    """Passes everything on, as wrappers of datasets do."""

    def __getattr__(self, name: str) -> Any:
        return np.zeros(2)


ODD = {
    "fails": Broken(),
    "its parts fail": Loader(
        dataset=Broken(), sampler=Broken(), batch_sampler=Broken(), multiprocessing_context=Broken()
    ),
    "no text as a name": Loader(dataset=Named(), sampler=Named(), collate_fn=Named()),
    "arrays": Named(),
    "numbers of NumPy": Loader(
        batch_size=np.int64(4), num_workers=np.int32(2), prefetch_factor=np.int16(2)
    ),
    "other numbers": Loader(batch_size=[4, 4], num_workers="2", pin_memory=np.zeros(3)),
}


@pytest.mark.parametrize("kind", ODD)
def test_the_facts_of_any_loader_can_be_sent(kind: str) -> None:
    loader = ODD[kind]
    facts = loader_facts(loader)
    assert json.loads(json.dumps(facts)) == facts
    assert json.dumps(generic_facts(loader))
    if kind == "numbers of NumPy":
        assert (facts["batch_size"], facts["num_workers"], facts["prefetch_factor"]) == (4, 2, 2)


class ByIndex(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return IMAGES[0]


class AtOnce(ByIndex):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [IMAGES[0] for _ in indices]


class PassesOn(ByIndex):
    """A wrapper, as people write it."""

    def __init__(self, wrapped: ByIndex) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(IMAGES)


@pytest.mark.parametrize(
    ("loader", "is_by_batch"),
    [
        (DataLoader(ByIndex()), False),
        (DataLoader(AtOnce()), True),
        (DataLoader(Subset(AtOnce(), [1, 2])), True),
        (DataLoader(Subset(Subset(AtOnce(), [1, 2]), [0])), True),
        (DataLoader(Subset(ByIndex(), [1, 2])), False),
        (DataLoader(PassesOn(AtOnce())), True),
        (DataLoader(PassesOn(ByIndex())), False),
        (DataLoader(ConcatDataset([AtOnce(), AtOnce()])), False),
        (DataLoader(ByIndex(), batch_size=None), True),
        (DataLoader(Stream()), False),
        (DataLoader(Stream(), batch_size=None), False),
    ],
)
def test_a_dataset_that_makes_a_batch_at_once_is_known(
    loader: DataLoader[Any], is_by_batch: bool
) -> None:
    assert loader_facts(loader).get("by_batch", False) == is_by_batch


def test_batches_that_come_as_they_are_made_are_a_fact() -> None:
    assert "in_order" not in loader_facts(DataLoader(ByIndex()))
    assert loader_facts(DataLoader(ByIndex(), in_order=False))["in_order"] is False


@dataclasses.dataclass
class Equal:
    """Has an `__eq__`, so no hash."""

    batch_size: int = 4


def test_loaders_are_told_apart_that_are_equal_and_have_no_hash() -> None:
    recorder = Recorder(Buffer())
    first = Equal()
    second = Equal()
    number = recorder.number(first, "loader")
    assert recorder.number(second, "loader") != number
    assert recorder.number(first, "loader") == number
    assert recorder.number(Broken(), "loader") not in (0, number)


@pytest.mark.parametrize("kind", WITHOUT)
def test_any_object_can_have_a_number(kind: str) -> None:
    recorder = Recorder(Buffer())
    assert recorder.number(WITHOUT[kind], "source") > 0
    descriptions, _ = recorder.buffer.take()
    assert [each.kind for each in descriptions] == ["source"]


def test_what_refuses_a_weak_reference_has_another_number_each_time() -> None:
    recorder = Recorder(Buffer())
    refuses = (1, 2)
    assert recorder.number(refuses, "source") != recorder.number(refuses, "source")


def test_an_object_that_is_gone_is_forgotten_and_its_number_may_be_anothers() -> None:
    kept, key = ByIdentity[str](), Equal()
    kept[key] = "first"
    kept[key] = "again"
    assert (kept[key], list(kept.values())) == ("again", ["again"])
    del key
    gc.collect()
    assert (list(kept.values()), kept._entries) == ([], {})


@pytest.mark.parametrize("kind", WITHOUT)
def test_what_comes_from_a_queue_ends_nothing(kind: str) -> None:
    x = np.zeros((3, 2))
    assert any(each is x for each in arrays((WITHOUT[kind], x)))
