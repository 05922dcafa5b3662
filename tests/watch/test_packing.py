"""Batches that cross packed are the very same on the other side."""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as dataloader_module

from tests.watch.watching import Host
from vitprof.watch import packing
from vitprof.watch.packing import FromUint8, PackedBatch, PackingCollate, Saving, packed

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


def whole_numbers(dtype: torch.dtype = torch.float32, *, is_product: bool = False) -> Tensor:
    """All that an image of bytes can hold, as ToTensor and ToDtype make it."""
    numbers = torch.arange(256, dtype=torch.uint8).repeat(20).view(2, 10, 256)
    floats = numbers.to(dtype)
    return floats.mul(1.0 / 255) if is_product else floats.div(255)


def same_bits(one: Tensor, other: Tensor) -> bool:
    assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    numbers = [tensor.numpy().tobytes() for tensor in (one, other)]
    return numbers[0] == numbers[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("is_product", [False, True])
@pytest.mark.parametrize("joins", [False, True])
def test_floats_cross_as_uint8_and_come_as_they_were(
    dtype: torch.dtype, is_product: bool, joins: bool
) -> None:
    x = whole_numbers(dtype, is_product=is_product)
    made = {"x": x, "more": [x.flip(0)], "label": torch.tensor([1, 2]), "as it is": x + 2}
    sent = packed(made, joins=joins, as_uint8=True)
    assert type(sent) is PackedBatch
    crossed = [tensor for tensor in sent.packed.values() if tensor.dtype is torch.uint8]
    assert sum(tensor.numel() for tensor in crossed) == 2 * x.numel()
    assert len(crossed) == (1 if joins else 2)
    assert sent.saved_bytes == 2 * x.numel() * (x.element_size() - 1)
    assert sent.n_bytes == 3 * x.numel() * x.element_size() + 2 * 8
    found = sent.unpacked()
    for one, other in zip(tensors(found), tensors(made), strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("last", [float("nan"), -0.0, float("inf"), 300 / 255, -1 / 255, 0.5])
def test_floats_that_no_byte_has_cross_as_they_are(last: float) -> None:
    """0.0 equals -0.0, but 1 / 0.0 does not equal 1 / -0.0."""
    x = whole_numbers()
    x[-1, -1, -1] = last
    off = torch.full_like(x, 0.2)
    for _ in range(2):  # one bit off is what a product with 1 / 255 gives
        off = off.nextafter(torch.ones(()))
    made = [x, off]
    assert packed(made, joins=False, as_uint8=True) is made


def test_few_floats_cross_as_they_are() -> None:
    made = [torch.ones(4), torch.zeros(packing.LEAST_FLOATS - 1)]
    assert packed(made, joins=False, as_uint8=True) is made


def test_an_operation_that_pytorch_lacks_leaves_a_batch_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("\"round\" not implemented for 'Half'")

    monkeypatch.setattr(packing, "_to_uint8", fail)
    made = [whole_numbers()]
    assert packed(made, joins=False, as_uint8=True) is made


def test_floats_are_made_in_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made_pinned = []
    floats = FromUint8.floats

    def floats_seen(self: FromUint8, numbers: Tensor, *, pinned: bool = False) -> Tensor:
        made_pinned.append(pinned)
        return floats(self, numbers)

    made = [whole_numbers(), torch.tensor([1])]
    sent = packed(made, joins=False, as_uint8=True)
    monkeypatch.setattr(FromUint8, "floats", floats_seen)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    found = sent.pin_memory().unpacked()
    assert made_pinned == [True], "once, by the thread that pins"
    assert same_bits(found[0], made[0])


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


class Images(Dataset[Tensor]):
    """Images as floats; the last ones are normalised."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        image = whole_numbers().roll(index, 2)
        return image if index < 6 else (image - 0.5) / 0.25


@pytest.mark.parametrize("joins", [False, True])
def test_images_of_a_loader_come_to_the_bit(monkeypatch: pytest.MonkeyPatch, joins: bool) -> None:
    said: list[str] = []
    kind = dataloader_module._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "_next_data", kind._next_data)
    packing.unpack_batches(dataloader_module, Saving(said.append, said.append))
    plain = list(DataLoader(Images(), batch_size=2, collate_fn=as_list))
    collate = PackingCollate(as_list, joins=joins, as_uint8=True)
    list(DataLoader(Images(), batch_size=2, num_workers=1))
    assert said == [], "another loader"
    found = list(DataLoader(Images(), batch_size=2, num_workers=1, collate_fn=collate))
    for batch, of_plain in zip(found, plain, strict=True):
        assert all(map(same_bits, batch, of_plain))
    assert said == ["uint8=on saves 0.0307 of the 0.041 MB of a batch"]


NO_FLOATS = (
    "in the first 8 batches no tensor has 4,096 floats or more that are whole numbers / 255 "
    "(normalised images have none)"
)
NO_SEVERAL = "in the first 8 batches no dtype has several tensors to pack"


@pytest.mark.parametrize(
    ("joins", "as_uint8", "why"),
    [
        (False, True, f"uint8=on changes nothing, so this is the setting without: {NO_FLOATS}"),
        (True, False, f"pack=on changes nothing, so this is the setting without: {NO_SEVERAL}"),
        (
            True,
            True,
            "pack=on and uint8=on change nothing, so this is the setting without: "
            f"{NO_SEVERAL}, and {NO_FLOATS}",
        ),
    ],
)
def test_batches_that_cross_as_ever_are_told_after_some(
    joins: bool, as_uint8: bool, why: str
) -> None:
    said: list[str] = []
    unused: list[str] = []
    saving = Saving(said.append, unused.append)
    iterator = SimpleNamespace(_collate_fn=PackingCollate(as_list, joins=joins, as_uint8=as_uint8))
    for _ in range(packing.BATCHES_WITHOUT - 1):
        saving.of(iterator, [torch.ones(3)])
        saving.of(SimpleNamespace(_collate_fn=as_list), [torch.ones(3)])
    assert not unused, "another dataset's first batches may differ from its later ones"
    for _ in range(2):
        saving.of(iterator, [torch.ones(3)])
    assert (said, unused) == ([], [why])


def test_a_batch_that_is_packed_later_is_a_change() -> None:
    said: list[str] = []
    unused: list[str] = []
    saving = Saving(said.append, unused.append)
    iterator = SimpleNamespace(_collate_fn=PackingCollate(as_list, joins=True, as_uint8=True))
    made = packed([torch.ones(3), torch.zeros(3)])
    for at in range(2 * packing.BATCHES_WITHOUT):
        saving.of(iterator, made if at == 3 else [torch.ones(3)])
    assert (said, unused) == ([f"uint8=on saves nothing: {NO_FLOATS}"], [])
    alone = Saving(said.append, unused.append)
    iterator = SimpleNamespace(_collate_fn=PackingCollate(as_list, joins=True))
    for at in range(2 * packing.BATCHES_WITHOUT):
        alone.of(iterator, made if at == 3 else [torch.ones(3)])
    assert (len(said), unused) == (1, [])


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
    assert first.facts()["handed_over"].items() >= of_batch.items()
    # of a packed batch, one for each dtype
    assert [run.facts()["handed_over"]["storages"] for run in (first, told)] == [8, 2]
