"""HDF5: images in one piece, in chunks, and JPEG bytes."""

import errno
import os
import resource
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
from vitprof.engine.storage import contract, hdf5
from vitprof.errors import DataError, SampleError

pytestmark = pytest.mark.usefixtures("shared_home")
PIXELS = ["hdf5", "hdf5-chunked"]
HDF5 = [*PIXELS, "hdf5-encoded"]


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
    found = {n: contract.halved_until_small(hdf5.CHUNK_ROWS, n, hdf5.CHUNK_BYTES) for n in rows}
    assert found == rows


@pytest.mark.parametrize("name", HDF5)
def test_a_write_that_is_refused(
    name: str, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told of it, HDF5 could not close the file and would end the process (h5py issue 914)."""
    monkeypatch.setattr(hdf5, "COPY_BYTES", 100_000)  # bytes are joined in blocks
    assert_whole(name)
    size = (place(name).root / "data.h5").stat().st_size
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
    path = root / "data.h5"
    os.truncate(path, path.stat().st_size // 2)
    refused(name, root, str(path), "truncated")
    for content in (b"", b"not HDF5" * 1000, b"\x89HDF\r\n\x1a\n" + bytes(4000)):
        path.write_bytes(content)
        refused(name, root, str(path), "cannot be read")


X, Y = np.zeros((600, 28, 28, 1), np.uint8), np.arange(600) % 10
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # how X_train and Y_train are made instead, and what is to be said
    "dtype": ({"data": X.astype(np.float32)}, {"data": Y}, "X_train is float32"),
    "rank": (
        {"data": X[..., 0]},
        {"data": Y},
        "X_train is uint8 (600, 28, 28), not uint8 (600, 28, 28, 1)",
    ),
    "fewer images": (
        {"data": X[:599]},
        {"data": Y},
        "X_train is uint8 (599, 28, 28, 1), not uint8 (600, 28, 28, 1)",
    ),
    "fewer labels": (
        {"data": X},
        {"data": Y[:10]},
        "X_train is uint8 (600, 28, 28, 1), not uint8 (10, 28, 28, 1)",
    ),
    "label dtype": ({"data": X}, {"data": Y.astype(np.float32)}, "Y_train is float32"),
    "text labels": ({"data": X}, {"data": [b"one"] * 600}, "Y_train is"),
    "no images": ({}, {"data": Y}, "no data set X_train"),
    "no labels": ({"data": X}, {}, "no data set Y_train"),
}


def made(path: Path, **data_sets: dict[str, Any]) -> Path:
    """The directory `path` with a file that has these data sets, each with h5py's options; {} for none."""
    with h5py.File(path / "data.h5", "w") as file:
        for name, options in data_sets.items():
            if options:
                file.create_dataset(name, **options)
    return path


@pytest.mark.parametrize("name", PIXELS)
def test_another_content(name: str, tmp_path: Path) -> None:
    chunks = {"chunks": True} if name == "hdf5-chunked" else {}
    for images, labels, words in OTHER.values():
        made(tmp_path, X_train=images | chunks if images else {}, Y_train=labels)
        refused(name, tmp_path, str(tmp_path / "data.h5"), words)


def test_another_layout(tmp_path: Path) -> None:
    hdf5_root, chunked, encoded = (place(name).root for name in HDF5)
    refused("hdf5", chunked, "X_train is chunked, not contiguous")
    refused("hdf5-chunked", hdf5_root, "X_train is contiguous, not chunked")
    refused("hdf5-encoded", hdf5_root, "no data set offsets_train")
    refused("hdf5", encoded, "X_train is uint8")
    layout = h5py.VirtualLayout(X.shape, np.uint8)
    layout[:] = h5py.VirtualSource(hdf5_root / "data.h5", "X_train", X.shape)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_group("X_test")
        file["Y_train"], file["Y_test"] = Y, Y
        file.create_virtual_dataset("X_train", layout)
    refused("hdf5", tmp_path, "X_train is of another layout")
    refused("hdf5", tmp_path, "no data set X_test", train=False)
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


def test_offsets_that_cannot_be(tmp_path: Path) -> None:
    for offsets, word in (([5, 10], "offsets"), ([0, 20, 10], "offsets"), ([0, 10], "X_train")):
        labels = {"data": Y[: len(offsets) - 1]}
        made(
            tmp_path,
            X_train={"data": np.zeros(30, np.uint8)},
            Y_train=labels,
            offsets_train={"data": offsets},
        )
        refused("hdf5-encoded", tmp_path, str(tmp_path / "data.h5"), word)


def test_an_empty_sample_is_named(tmp_path: Path) -> None:
    root, files = copy_of("hdf5-encoded", tmp_path), expected("hdf5-encoded")
    with h5py.File(root / "data.h5", "r+") as file:
        file["offsets_train"][8] = file["offsets_train"][7]
    storage = opened("hdf5-encoded", root)
    name = f"{root / 'data.h5'}: {contract.read_ids(root, train=True)[7]}"
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
    os.truncate(root / "data.h5", 3000)
    with pytest.raises(DataError, match=r"data\.h5 cannot be read"):
        samples(storage)
    storage.close()
    (root / "data.h5").unlink()
    with pytest.raises(DataError, match="No such file"):
        samples(storage)
    assert open_files(root) == []


def test_a_sample_that_the_drive_cannot_read_is_named_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = opened("hdf5-encoded")
    begin, pread = int(storage._positions[3]), os.pread

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
