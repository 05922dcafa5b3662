"""One file with the bare pixels of each sample."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from tests.engine.storage.preparing import PHOTOS, copy_of, few_photos, images_of, place, read_all  # noqa: F401
from tests.engine_fixtures import SMALL, shared_home  # noqa: F401
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.files import RawFilesStorage, sample_path
from vitprof.errors import SampleError

NOBODY = 65534


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:  # noqa: F811
    return copy_of("raw-files", tmp_path)


def test_folders_of_a_thousand() -> None:
    assert sample_path(59_999, "x", train=True) == "images/train-059/x"
    assert sample_path(1_000, "x", train=False) == "images/test-001/x"


def test_files_are_the_bare_pixels(root: Path) -> None:
    assert (root / "images/train-000/train-000123").read_bytes() == images_of()[123].tobytes()
    assert len(os.listdir(root / "images/test-000")) == 100


def test_photos(few_photos: Path) -> None:  # noqa: F811
    storage = RawFilesStorage(PHOTOS, place("raw-files", PHOTOS), True)
    assert (read_all(storage) == images_of(PHOTOS)).all()


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
def test_a_damaged_file_is_named(root: Path, damage: str, named: str) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    whole = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "cut": whole[:-1], "longer": whole + b"x"}[damage])
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
