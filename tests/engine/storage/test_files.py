"""Image files: PNG of digits, the JPEG files that photos consists of."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.engine.storage.preparing import PHOTOS, copy_of, damage_file, images_of, place
from tests.engine.storage.test_storages import Meter
from tests.engine_fixtures import SMALL
from vitprof.engine.data.datasets import open_source
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.files import FilesStorage, RawFilesStorage, sample_path
from vitprof.errors import DataError, SampleError


def test_digits_as_png(shared_home: Path) -> None:
    storage = FilesStorage(SMALL, place("files"), False)
    images = images_of(train=False)
    for i in (0, 57, 99):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(storage.read_encoded(i)))), images[i, :, :, 0])
        assert Path(storage.name_of(i)).read_bytes() == storage.read_encoded(i)
    assert storage.name_of(57).endswith("images/test-000/test-000057.png")


@pytest.mark.parametrize("train", [True, False])
def test_photos_are_read_where_they_are(few_photos: Path, train: bool) -> None:
    where = place("files", PHOTOS)
    assert where.root == few_photos
    storage = FilesStorage(PHOTOS, where, train)
    source = open_source(PHOTOS, few_photos, train=train)
    assert len(storage) == len(source.ids) == len(storage.labels)
    assert [storage.read_encoded(i) for i in range(len(storage))] == source.encoded(0, len(storage))
    assert np.array_equal(storage.labels.numpy(), source.labels)
    assert [Path(storage.name_of(i)).stem for i in range(len(storage))] == source.ids


def test_a_slow_drive_is_told_what_is_read(few_photos: Path) -> None:
    meter = Meter()
    storage = FilesStorage(PHOTOS, Place(few_photos, meter), True)
    files = [storage.read_encoded(i) for i in (3, 7)]
    assert (meter.n_bytes, meter.n_files) == (sum(map(len, files)), 2)


@pytest.mark.parametrize(
    ("damage", "named"), [("missing", "No such file"), ("empty", "is empty"), ("directory", "Is a directory|is empty")]
)
def test_a_damaged_file_is_named(few_photos: Path, damage: str, named: str) -> None:
    storage = FilesStorage(PHOTOS, Place(few_photos), True)
    path = Path(storage.name_of(3))
    damage_file(path, damage)
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        storage.read_encoded(3)
    assert "\n" not in str(caught.value)
    assert storage.read_encoded(4)


def test_a_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        FilesStorage(PHOTOS, Place(tmp_path), True)


NOBODY = 65534


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("raw-files", tmp_path)


def test_folders_of_a_thousand() -> None:
    assert sample_path(59_999, "x", train=True) == "images/train-059/x"
    assert sample_path(1_000, "x", train=False) == "images/test-001/x"


def test_files_are_the_bare_pixels(root: Path) -> None:
    assert (root / "images/train-000/train-000123").read_bytes() == images_of()[123].tobytes()
    assert len(os.listdir(root / "images/test-000")) == 100


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "No such file"),
        ("empty", "0 bytes instead of 784"),
        ("cut", "783 bytes instead of 784"),
        ("longer", "more than 784 bytes instead of 784"),
        ("directory", "Is a directory"),
    ],
)
def test_a_damaged_file_of_pixels_is_named(root: Path, damage: str, named: str) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    damage_file(path, damage)
    storage = RawFilesStorage(SMALL, Place(root), True)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*{named}") as caught:
        storage.read(torch.tensor([4, 5]))
    assert "\n" not in str(caught.value)
    assert set(os.listdir("/proc/self/fd")) == before
    assert (storage.read(torch.tensor([4, 6])).numpy() == images_of()[[4, 6]]).all()  # the others can be read


def test_a_file_that_may_not_be_read(root: Path) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(0)
    storage = RawFilesStorage(SMALL, Place(root), True)
    as_root = os.geteuid() == 0
    try:
        if as_root:  # whom no permission stops
            os.seteuid(NOBODY)
        with pytest.raises(SampleError, match=rf"{re.escape(str(path))} cannot be read \(Permission denied\)"):
            storage.read(torch.tensor([5]))
    finally:
        if as_root:
            os.seteuid(0)
