"""HDF5: images in one piece, in chunks, and JPEG bytes."""

import errno
import os
import resource
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.engine.storage.preparing import (
    assert_whole,
    copy_of,
    expected,
    images_of,
    open_files,
    opened,
    place,
    prepare,
    refused,
    samples,
)
from tests.engine_fixtures import error_in_one_line, survives
from vitprof.engine.storage import contract
from vitprof.errors import DataError, SampleError
from vitprof.forms import hdf5

pytestmark = pytest.mark.usefixtures("shared_home")
PIXELS = ["hdf5", "hdf5-chunked"]
HDF5 = [*PIXELS, "hdf5-encoded"]


def file_of(name: str, root: Path) -> Path:
    """The file with the images of the training split."""
    return root / "data.h5" if name in PIXELS else root / "train" / "samples.h5"


def named(path: Path) -> str:
    """What of its path a message has: the file of all, or the folder of a split."""
    return str(path if path.name == "data.h5" else path.parent)


@pytest.mark.parametrize("name", PIXELS)
def test_the_file_is_the_one_that_the_article_describes_and_a_storage_knows_its_blocks(
    name: str,
) -> None:
    with h5py.File(place(name).root / "data.h5", "r") as file:
        assert sorted(file) == ["X_test", "X_train", "Y_test", "Y_train"]
        for split, n in (("train", 600), ("test", 100)):
            images, labels = file[f"X_{split}"], file[f"Y_{split}"]
            assert (images.shape, images.dtype) == ((n, 28, 28, 1), np.uint8)
            assert (labels.shape, labels.dtype) == ((n,), np.int64)
            assert images.chunks == (None if name == "hdf5" else (min(n, 256), 28, 28, 1))
            assert np.array_equal(images[:], images_of(train=split == "train"))
    if name == "hdf5-chunked":
        assert [opened(name, train=train).block for train in (True, False)] == [256, 100]
    rows = {784: 256, 4096: 256, 150_528: 4, 1 << 20: 1, 1 << 30: 1}
    assert {n: hdf5.rows_of_a_chunk(n) for n in rows} == rows


@pytest.mark.parametrize("name", HDF5)
def test_a_write_that_is_refused(
    name: str, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told of it, HDF5 could not close the file and would end the process (h5py issue 914)."""
    monkeypatch.setattr(hdf5, "COPY_BYTES", 100_000)  # bytes are joined in blocks
    assert_whole(name)
    size = file_of(name, place(name).root).stat().st_size
    (small_home / "prepared").rename(small_home / "whole")

    def work(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(DataError, match="raise the limit"):
            prepare(name)
        assert open_files(small_home / "prepared") == []

    for limit in (0, 3000, size // 2, size - 1):
        survives(partial(work, limit))


@pytest.mark.parametrize("name", HDF5)
def test_cut_in_half_and_not_hdf5(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    path = file_of(name, root)
    os.truncate(path, path.stat().st_size // 2)
    refused(name, root, named(path), "truncated")
    for content in (b"", b"not HDF5" * 1000, b"\x89HDF\r\n\x1a\n" + bytes(4000)):
        path.write_bytes(content)
        refused(name, root, named(path), "cannot be read")


X, Y = np.zeros((600, 28, 28, 1), np.uint8), np.arange(600) % 10
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    # how X_train is made instead, and what is to be said
    "dtype": ({"data": X.astype(np.float32)}, "X_train is float32"),
    "rank": ({"data": X[..., 0]}, "holds uint8 (600, 28, 28), not"),
    "fewer images": ({"data": X[:599]}, "holds uint8 (599, 28, 28, 1), not"),
    "no images": ({}, "no dataset X_train"),
}


def made(path: Path, **data_sets: dict[str, Any]) -> Path:
    """The directory `path` with a file that has these data sets, each with h5py's options; {} for none."""
    with h5py.File(path / "data.h5", "w") as file:
        for name, options in data_sets.items():
            if options:
                file.create_dataset(name, **options)
    return path


def copy_labels(name: str, root: Path) -> None:
    """Labels are in a file of their own."""
    shutil.copy(place(name).root / contract.LABELS, root)


@pytest.mark.parametrize("name", PIXELS)
def test_another_content(name: str, tmp_path: Path) -> None:
    chunks = {"chunks": True} if name == "hdf5-chunked" else {}
    copy_labels("hdf5", tmp_path)
    for images, words in OTHER.values():
        made(tmp_path, X_train=images | chunks if images else {}, Y_train={"data": Y})
        refused(name, tmp_path, str(tmp_path / "data.h5"), words)


def test_another_layout(tmp_path: Path) -> None:
    hdf5_root, chunked, encoded = (place(name).root for name in HDF5)
    refused("hdf5", chunked, "X_train is chunked, not contiguous")
    refused("hdf5-chunked", hdf5_root, "X_train is contiguous, not chunked")
    copy_labels("hdf5", tmp_path)
    refused("hdf5-encoded", encoded.parent, "labels.npz cannot be read")
    layout = h5py.VirtualLayout(X.shape, np.uint8)
    layout[:] = h5py.VirtualSource(hdf5_root / "data.h5", "X_train", X.shape)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_group("X_test")
        file["Y_train"], file["Y_test"] = Y, Y
        file.create_virtual_dataset("X_train", layout)
    refused("hdf5", tmp_path, "X_train is in another file, which is not followed")
    refused("hdf5", tmp_path, "no dataset X_test", train=False)
    made(
        tmp_path, Y_train={"data": Y}, X_train={"shape": X.shape, "dtype": np.uint8}
    )  # allocated when written to
    refused("hdf5", tmp_path, "X_train", "beyond the end of the file")
    (tmp_path / "raw").write_bytes(X.tobytes())
    external = {
        "shape": X.shape,
        "dtype": np.uint8,
        "external": [(str(tmp_path / "raw"), 0, X.size)],
    }
    made(tmp_path, Y_train={"data": Y}, X_train=external)
    refused("hdf5", tmp_path, "X_train is in another file")


def test_ends_that_cannot_be(tmp_path: Path) -> None:
    """Those that fall, and those that are not the length of the bytes."""
    root = copy_of("hdf5-encoded", tmp_path)
    for ends in ([5, 30], [0, 20, 10], [0, 10]):
        path = file_of("hdf5-encoded", root)
        with h5py.File(path, "w") as file:
            file["jpg"] = np.zeros(30, np.uint8)
            file["ends of jpg"] = np.array(ends, np.int64)
        refused("hdf5-encoded", root, named(path), "the ends of jpg do not rise from 0")
    with h5py.File(path, "w") as file:
        file["jpg"] = np.zeros(30, np.uint8)
        file["ends of jpg"] = np.array([0, 30], np.int64)
    refused("hdf5-encoded", root, "holds 1 samples, not 20")


def test_an_empty_sample_is_named(tmp_path: Path) -> None:
    root, files = copy_of("hdf5-encoded", tmp_path), expected("hdf5-encoded")
    with h5py.File(file_of("hdf5-encoded", root), "r+") as file:
        file["ends of jpg"][8] = file["ends of jpg"][7]
    storage = opened("hdf5-encoded", root)
    name = f"{root / 'train'}: {contract.read_ids(root, train=True)[7]}"
    assert storage.name_of(7) == name
    with error_in_one_line(SampleError, match=f"{name} is empty; delete"):
        storage.read_encoded(7)
    assert storage.read_encoded(6) == files[6]
    storage.close()


@pytest.mark.parametrize("name", HDF5)
def test_a_file_that_vanishes_or_changes_between_opening_and_reading(
    name: str, tmp_path: Path
) -> None:
    root = copy_of(name, tmp_path)
    storage = opened(name, root)
    path = file_of(name, root)
    os.truncate(path, 3000)
    with pytest.raises(DataError, match=rf"{named(path)} cannot be read"):
        samples(storage)
    storage.close()
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        samples(storage)
    assert open_files(root) == []


def test_a_sample_that_the_drive_cannot_read_is_named_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = opened("hdf5-encoded")
    begin, pread = int(storage._here()._ends[0][3]), os.pread

    def broken(file: int, n_bytes: int, position: int) -> bytes:
        if position == begin:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, n_bytes, position)

    monkeypatch.setattr(os, "pread", broken)
    with closing(storage):
        with pytest.raises(
            SampleError, match=r"cannot be read \(Input/output error\); delete \S+ and it is made"
        ):
            storage.read_encoded(3)
        assert storage.read_encoded(4)
