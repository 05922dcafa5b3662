"""Storages: the same samples, whichever way they are kept."""

from __future__ import annotations

import pytest
import torch
from engine_fixtures import SMALL, small_home  # noqa: F401

from vitprof import data
from vitprof.data import idx
from vitprof.errors import DataError
from vitprof.storage import Storage, open_storage
from vitprof.storage.memory import MemoryStorage
from vitprof.strategies import STRATEGIES
from vitprof.transfer.normalise import ToInput

pytestmark = pytest.mark.usefixtures("small_home")
NAMES = sorted({s.storage for s in STRATEGIES.values()})
WHOLE_BATCH = ["memory", "memory-float"]


def opened(name: str, *, train: bool = True) -> Storage:
    return open_storage(name, SMALL, data.prepare("digits"), train=train)


def stored(*, train: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = data.read_split(data.prepare("digits"), train)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_samples_one_by_one(name: str, train: bool) -> None:
    storage = opened(name, train=train)
    images, labels = stored(train=train)
    assert len(storage) == len(labels)
    samples = storage.dataset()
    to_input = ToInput(SMALL, storage.pixels, 28)
    expected = ToInput(SMALL, "uint8", 28)(images)
    for i in (0, 1, 57, len(labels) - 1):
        image, label = samples[i]
        assert image.shape == (1, 28, 28)
        assert int(label) == labels[i]
        assert torch.equal(to_input(image.unsqueeze(0))[0], expected[i])


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_samples_as_a_batch(name: str) -> None:
    storage = opened(name)
    images, labels = stored()
    chosen = torch.tensor([5, 599, 0, 5])
    got_images, got_labels = storage.read_batch(chosen)
    assert storage.device == got_images.device == torch.device("cpu")
    assert got_labels.dtype == torch.int64
    assert torch.equal(got_labels, labels[chosen])
    as_stored = got_images if storage.pixels == "uint8" else (got_images * 255).round().to(torch.uint8)
    assert torch.equal(as_stored, images[chosen])


def test_what_pixels_mean() -> None:
    uint8, unit, normalised = (opened(name).dataset()[3][0] for name in ("memory", "memory-float", "idx"))
    assert (uint8.dtype, unit.dtype, normalised.dtype) == (torch.uint8, torch.float32, torch.float32)
    assert torch.equal(unit, uint8 / 255)
    assert torch.equal(normalised, (uint8 / 255 - 0.1307) / 0.3081)


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_moved_to_a_device(name: str) -> None:
    storage = opened(name)
    moved = storage.to(torch.device("cpu"))
    assert (moved.pixels, len(moved), moved.device) == (storage.pixels, len(storage), torch.device("cpu"))
    away = storage.to(torch.device("meta"))
    assert away.device == torch.device("meta")
    assert away.read_batch(torch.zeros(2, dtype=torch.int64, device="meta"))[0].shape == (2, 1, 28, 28)


def test_the_baseline_has_no_whole_batches() -> None:
    with pytest.raises(NotImplementedError, match="that is its point"):
        opened("idx").read_batch(torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="use storage 'memory'"):
        opened("idx").to(torch.device("cpu"))


def test_reading_does_not_change_what_is_stored() -> None:
    storage = opened("memory")
    before = storage.read_batch(torch.arange(600))[0].clone()
    images, _ = storage.read_batch(torch.arange(600))
    images.zero_()
    assert torch.equal(storage.read_batch(torch.arange(600))[0], before)


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_a_damaged_file_is_named_in_one_line(name: str, tmp_path: object) -> None:
    root = data.prepare("digits")
    images_file, _ = idx.split_files(root, True)
    whole = images_file.read_bytes()
    try:
        images_file.write_bytes(whole[:-1])
        with pytest.raises(DataError, match="train-images-idx3-ubyte") as caught:
            open_storage(name, SMALL, root, train=True)
        assert "\n" not in str(caught.value)
    finally:
        images_file.write_bytes(whole)


def test_an_unknown_storage() -> None:
    with pytest.raises(KeyError):
        opened("tape")


def test_labels_are_copied_where_the_reader_gives_arrays_away() -> None:
    storage = opened("memory")
    assert isinstance(storage, MemoryStorage)
    first, _ = storage.read_batch(torch.tensor([0]))
    second, _ = storage.read_batch(torch.tensor([0]))
    assert first.data_ptr() != second.data_ptr()
