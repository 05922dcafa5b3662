"""Arrays in a mapped .npy file, and in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from tests.engine.storage.preparing import PHOTOS, copy_of, damage_file, images_of, open_files, place, read_all
from tests.engine_fixtures import SMALL
from vitprof.engine.storage import arrays, open_storage
from vitprof.engine.storage.arrays import MemmapStorage, Writer
from vitprof.engine.storage.contract import Place, SplitFacts
from vitprof.errors import DataError


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("memmap", tmp_path)


def test_the_file_is_numpys_own(root: Path) -> None:
    assert np.array_equal(np.load(root / "train.npy"), images_of())


def test_written_in_chunks(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), np.uint8)
    ids, labels = [str(i) for i in range(10)], np.arange(10)
    writer = Writer(tmp_path, SplitFacts("train", 10, (4, 4, 3), ids, labels))
    for start, stop in ((0, 4), (4, 8), (8, 10)):
        writer.add(start, images[start:stop])
    writer.finish()
    writer.close()
    writer.close()
    assert np.array_equal(np.load(tmp_path / "train.npy"), images)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "it is missing"),
        ("empty", "cannot be read"),
        ("cut", "cannot be read"),
        ("garbage", "cannot be read|is not"),
        ("dtype", r"holds float32 \(600, 28, 28, 1\), not uint8 \(600, 28, 28, 1\)"),
        ("length", r"holds uint8 \(599, 28, 28, 1\), not uint8 \(600, 28, 28, 1\)"),
        ("pickle", "cannot be read"),
        ("archive", "is not a .npy file"),
        ("directory", "cannot be read"),
    ],
)
def test_damage_is_named(root: Path, damage: str, named: str) -> None:
    path = root / "train.npy"
    images = images_of()
    damage_file(path, damage)
    if damage == "dtype":
        np.save(path, images.astype(np.float32))
    elif damage == "length":
        np.save(path, images[:-1])
    elif damage == "pickle":
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    elif damage == "archive":
        with path.open("wb") as file:
            np.savez(file, images=images)
    with pytest.raises(DataError, match=rf"train\.npy.*({named}).*delete {root} and it is made again") as caught:
        MemmapStorage(SMALL, Place(root), True)
    assert "\n" not in str(caught.value)
    assert "allow_pickle" not in str(caught.value), "NumPy's advice how to load it all the same"


def test_removed_between_opening_and_reading(root: Path) -> None:
    storage = MemmapStorage(SMALL, Place(root), True)
    storage.close()
    (root / "train.npy").unlink()
    with pytest.raises(DataError, match="it is missing"):
        storage.read(torch.arange(2))


def test_moved_to_a_device(shared_home: Path) -> None:
    storage = open_storage("memory", SMALL, place("memory"), train=True)
    assert storage.device == torch.device("cpu")
    away = storage.to(torch.device("meta"))
    assert (away.device, away.labels.device) == (torch.device("meta"), torch.device("meta"))
    assert (away.shape, len(away)) == (storage.shape, 600)
    assert away.read(torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2, 28, 28, 1)
    assert np.array_equal(read_all(storage.to(torch.device("cpu"))), images_of())


@pytest.mark.parametrize("train", [True, False])
def test_photos_come_from_the_array_on_disk(few_photos: Path, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "IMAGES_AT_ONCE", 7)
    where = place("memory", PHOTOS)
    assert (where.root / "train.npy").exists()
    images = images_of(PHOTOS, train=train)
    storage = arrays.open_uint8(PHOTOS, where, train)
    assert storage.shape == (224, 224, 3)
    assert np.array_equal(read_all(storage), images)
    floats = arrays.open_float(PHOTOS, where, train)
    image, label = floats.dataset()[1]
    assert (image.shape, image.dtype, image.is_contiguous()) == ((3, 224, 224), torch.float32, True)
    assert torch.equal(image, torch.from_numpy(images[1]).permute(2, 0, 1) / 255)
    assert int(label) == storage.labels[1]
    assert not [path for path in open_files() if path.startswith(str(where.root))]


@pytest.mark.parametrize(
    ("name", "needs"), [("memory", "2.87 MiB"), ("memory-float", "11.5 MiB"), ("pt-whole", "2.87 MiB")]
)
def test_too_little_memory_is_said_beforehand(
    few_photos: Path, name: str, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place(name, PHOTOS)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with pytest.raises(DataError, match=rf"needs {needs} and 1.00 MiB are available; choose a storage on disk"):
        open_storage(name, PHOTOS, where, train=True)
