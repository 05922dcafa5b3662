"""The .npy file mapped into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import copy_of, damage_file, images_of
from tests.engine_fixtures import SMALL
from vitprof.engine.storage.contract import Chunk, Place, SplitFacts
from vitprof.engine.storage.memmap import MemmapStorage, Writer
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
        writer.add(start, Chunk(ids[start:stop], images[start:stop], None))
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
