"""A whole split in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from tests.engine.storage.preparing import PHOTOS, images_of, open_files, place, read_all
from tests.engine_fixtures import SMALL
from vitprof.engine.storage import memory, open_storage
from vitprof.errors import DataError


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
    monkeypatch.setattr(memory, "IMAGES_AT_ONCE", 7)
    where = place("memory", PHOTOS)
    assert (where.root / "train.npy").exists()
    images = images_of(PHOTOS, train=train)
    storage = memory.open_uint8(PHOTOS, where, train)
    assert storage.shape == (224, 224, 3)
    assert np.array_equal(read_all(storage), images)
    floats = memory.open_float(PHOTOS, where, train)
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
