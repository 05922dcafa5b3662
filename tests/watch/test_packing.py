"""Batches that cross packed are the very same on the other side."""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as dataloader_module

from tests.watch.watching import Host
from vitprof.watch import packing
from vitprof.watch.packing import PackedBatch, PackingCollate, packed

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Targets:
    """A batch of a user's own class."""

    boxes: list[Tensor]
    name: str


def batch() -> dict[str, Any]:
    ones = torch.ones(3)
    grid = torch.arange(12.0).view(3, 4)
    return {
        "images": torch.rand(2, 3, 4),
        "targets": [Targets([torch.rand(2, 4), torch.rand(1, 4)], "a"), (torch.tensor([7]), None)],
        "pair": Pair(torch.tensor(3), torch.tensor([True, False])),
        "bytes": torch.tensor([1, 2], dtype=torch.uint8),
        "twice": [ones, ones],
        "turned": grid.t(),
        "views": [grid[0], grid[1]],
        "empty": torch.zeros(0, 4),
        "learned": torch.rand(2, requires_grad=True),
        "words": ["x", 1, 2.5],
    }


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = list(vars(value).values())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in tensors(one)]
    return []


def assert_equal(found: Any, made: Any) -> None:
    assert found.keys() == made.keys()
    assert found["words"] == made["words"]
    assert type(found["pair"]) is Pair
    assert (found["targets"][0].name, found["targets"][1][1]) == ("a", None)
    for one, other in zip(tensors(found), tensors(made), strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert one.requires_grad == other.requires_grad
        assert torch.equal(one, other)
    assert found["twice"][0] is found["twice"][1]


def test_a_batch_comes_as_it_was() -> None:
    made = batch()
    sent = packed(made)
    assert type(sent) is PackedBatch
    floats, numbers = sent.packed["torch.float32"], sent.packed["torch.int64"]
    assert (floats.numel(), numbers.numel()) == (24 + 8 + 4 + 3, 2)
    assert_equal(sent.unpacked(), made)


def test_a_batch_of_a_tensor_for_each_dtype_is_left_as_it_is() -> None:
    for made in ([torch.rand(2, 3), torch.tensor([1, 2])], torch.rand(3), "text", [], [1, 2]):
        assert packed(made) is made


def test_what_pickle_cannot_take_is_left_as_it_is() -> None:
    made = [torch.rand(2), torch.rand(2), lambda: None]
    assert packed(made) is made


class Numbered(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "y": torch.tensor([index]), "n": index}


def as_list(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples


@pytest.fixture
def unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = dataloader_module._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "_next_data", kind._next_data)
    packing.unpack_batches(dataloader_module)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_what_its_collate_function_made(unpacking: None, workers: int) -> None:
    plain = list(DataLoader(Numbered(), batch_size=4, collate_fn=as_list))
    loader = DataLoader(
        Numbered(), batch_size=4, collate_fn=PackingCollate(as_list), num_workers=workers
    )
    found = list(loader)
    assert [[one["n"] for one in made] for made in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for made, other in zip(found, plain, strict=True):
        for one, of_plain in zip(tensors(made), tensors(other), strict=True):
            assert torch.equal(one, of_plain)


def test_a_trial_packs_what_the_script_then_gets_as_ever(host: Host) -> None:
    scripts = host.running("tests.watch.packed_script")

    def run(wanted: dict[str, Any]) -> Any:
        return scripts.run("train", env={"VITPROF_WATCH_OVERRIDES": json.dumps(wanted)})

    first = run({})
    watched = first.note("environment")[0]["watched"]
    wanted = {"place": watched["made_place"], "nth": None, "arguments": {}, "cache_bytes": None}
    told = run({**wanted, "packs": True})
    assert (told.status, told.complaint) == (0, "")
    assert told.note("environment")[0]["watched"]["made_changed"]
    assert json.loads(first.returned)["crossed"] == ["list"]
    assert json.loads(told.returned)["crossed"] == ["PackedBatch"]
    assert json.loads(told.returned)["losses"] == json.loads(first.returned)["losses"]
    assert len(told.steps["step"]) == len(first.steps["step"]) == 8
    of_batch = {"tensors": 8, "bytes": 4 * (16 + 8), "dtypes": {"float32": 4, "int64": 4}}
    assert first.facts()["handed_over"] == of_batch
