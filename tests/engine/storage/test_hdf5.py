"""HDF5: images in one piece, in chunks, and JPEG bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.engine.storage.writer_helpers import (
    COUNTS,
    FORMATS,
    INFO,
    assert_tells_of_a_limit,
    assert_whole,
    encoded_of,
    facts_of,
    one_line,
    open_both,
    open_files,
    pixels_of,
    write_both,
)
from vitprof.engine.storage import hdf5
from vitprof.engine.storage.contract import Place
from vitprof.errors import DataError, SampleError

PIXELS = ["contiguous", "chunked"]
HDF5 = [*PIXELS, "encoded"]


def test_the_file_is_the_one_that_the_article_describes(written: dict[str, Path]) -> None:
    for name in PIXELS:
        with h5py.File(written[name] / "data.h5", "r") as file:
            assert sorted(file) == ["X_test", "X_train", "Y_test", "Y_train"]
            for split, n in COUNTS.items():
                images, labels = file[f"X_{split}"], file[f"Y_{split}"]
                assert (images.shape, images.dtype) == ((n, 28, 28, 1), np.uint8)
                assert (labels.shape, labels.dtype) == ((n,), np.int64)
                assert images.chunks == (None if name == "contiguous" else (min(n, 256), 28, 28, 1))
                assert np.array_equal(images[:], pixels_of(split))
                assert np.array_equal(labels[:], facts_of(split).labels)


def test_a_storage_knows_its_blocks(written: dict[str, Path]) -> None:
    sizes = {784: 256, 4096: 256, 150_528: 4, 1 << 20: 1, 1 << 30: 1}
    assert {row_bytes: hdf5.chunk_rows(row_bytes) for row_bytes in sizes} == sizes
    assert [storage.block for storage, _ in open_both(hdf5.ChunkedStorage, written["chunked"])] == [256, 100]


@pytest.mark.slow
@pytest.mark.parametrize("name", HDF5)
def test_a_write_that_is_refused(name: str, written: dict[str, Path], tmp_path: Path) -> None:
    """Told of it, HDF5 could not close the file and would end the process (h5py issue 914)."""
    assert_tells_of_a_limit(FORMATS[name][0], tmp_path, written[name])


@pytest.mark.slow
def test_bytes_are_joined_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "COPY_BYTES", 1000)
    assert_whole("encoded", write_both(tmp_path, hdf5.ENCODED_FORMAT))


@pytest.mark.parametrize("name", HDF5)
def test_cut_in_half_and_not_hdf5(name: str, own: Callable[[str], Path]) -> None:
    directory = own(name)
    path = directory / "data.h5"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    one_line(FORMATS[name][1], directory, str(path), "truncated")
    for content in (b"", b"not HDF5" * 1000, b"\x89HDF\r\n\x1a\n" + bytes(4000)):
        path.write_bytes(content)
        one_line(FORMATS[name][1], directory, str(path), "cannot be read")


X, Y = pixels_of("train"), facts_of("train").labels
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # how X_train and Y_train are made instead, and what is to be said
    "dtype": ({"data": X.astype(np.float32)}, {"data": Y}, "X_train is float32"),
    "rank": ({"data": X[..., 0]}, {"data": Y}, "X_train is uint8 (600, 28, 28), not uint8 (600, 28, 28, 1)"),
    "shape": ({"data": X[:, :14]}, {"data": Y}, "X_train is uint8 (600, 14, 28, 1)"),
    "fewer images": ({"data": X[:599]}, {"data": Y}, "X_train is uint8 (599, 28, 28, 1), not uint8 (600, 28, 28, 1)"),
    "fewer labels": ({"data": X}, {"data": Y[:10]}, "X_train is uint8 (600, 28, 28, 1), not uint8 (10, 28, 28, 1)"),
    "label dtype": ({"data": X}, {"data": Y.astype(np.float32)}, "Y_train is float32"),
    "label rank": ({"data": X}, {"data": Y[:, None]}, "Y_train is int64 (600, 1)"),
    "text labels": ({"data": X}, {"data": [b"one"] * 600}, "Y_train is"),
    "no images": ({}, {"data": Y}, "no data set X_train"),
    "no labels": ({"data": X}, {}, "no data set Y_train"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHER)
@pytest.mark.parametrize("name", PIXELS)
def test_another_content(name: str, case: str, tmp_path: Path) -> None:
    images, labels, words = OTHER[case]
    with h5py.File(tmp_path / "data.h5", "w") as file:
        chunks = {"chunks": True} if name == "chunked" else {}
        for key, made in (("X_train", images | chunks if images else {}), ("Y_train", labels)):
            if made:
                file.create_dataset(key, **made)
    one_line(FORMATS[name][1], tmp_path, str(tmp_path / "data.h5"), words)


def test_another_layout(written: dict[str, Path], tmp_path: Path) -> None:
    one_line(hdf5.ContiguousStorage, written["chunked"], "X_train is chunked, not contiguous")
    one_line(hdf5.ChunkedStorage, written["contiguous"], "X_train is contiguous, not chunked")
    one_line(hdf5.EncodedStorage, written["contiguous"], "no data set offsets_train")
    one_line(hdf5.ContiguousStorage, written["encoded"], "X_train is uint8")
    with h5py.File(tmp_path / "data.h5", "w") as file:  # a group, a virtual and a lazily allocated data set
        file.create_group("X_test")
        file["Y_train"], file["Y_test"] = Y, Y
        layout = h5py.VirtualLayout((600, 28, 28, 1), np.uint8)
        layout[:] = h5py.VirtualSource(written["contiguous"] / "data.h5", "X_train", (600, 28, 28, 1))
        file.create_virtual_dataset("X_train", layout)
    one_line(hdf5.ContiguousStorage, tmp_path, "X_train is of another layout")
    one_line(hdf5.ContiguousStorage, tmp_path, "no data set X_test", train=False)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["Y_train"] = Y
        file.create_dataset("X_train", (600, 28, 28, 1), np.uint8)
    one_line(hdf5.ContiguousStorage, tmp_path, "X_train", "beyond the end of the file")
    (tmp_path / "raw").write_bytes(X.tobytes())
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["Y_train"] = Y
        file.create_dataset("X_train", X.shape, np.uint8, external=[(str(tmp_path / "raw"), 0, X.size)])
    one_line(hdf5.ContiguousStorage, tmp_path, "X_train is in another file")


@pytest.mark.parametrize("offsets", [[5, 10], [0, 20, 10], [0, 10]])
def test_offsets_that_cannot_be(offsets: list[int], tmp_path: Path) -> None:
    n = len(offsets) - 1
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["X_train"], file["Y_train"], file["offsets_train"] = np.zeros(30, np.uint8), Y[:n], np.array(offsets)
    one_line(hdf5.EncodedStorage, tmp_path, str(tmp_path / "data.h5"), "X_train" if offsets == [0, 10] else "offsets")


def test_an_empty_sample_is_named(own: Callable[[str], Path]) -> None:
    directory = own("encoded")
    with h5py.File(directory / "data.h5", "r+") as file:
        file["offsets_train"][8] = file["offsets_train"][7]
    storage = hdf5.EncodedStorage(INFO, Place(directory), True)
    assert storage.name_of(7) == f"{directory / 'data.h5'}: train-000007"
    with pytest.raises(SampleError, match=r"data\.h5: train-000007 is empty; delete") as caught:
        storage.read_encoded(7)
    assert "\n" not in str(caught.value)
    assert storage.read_encoded(6) == encoded_of("train")[6]
    storage.close()


@pytest.mark.parametrize("name", HDF5)
def test_a_file_that_vanishes_or_changes_between_opening_and_reading(name: str, own: Callable[[str], Path]) -> None:
    directory = own(name)
    storage = FORMATS[name][1](INFO, Place(directory), True)
    path = directory / "data.h5"
    with path.open("r+b") as file:
        file.truncate(3000)

    def read() -> None:
        storage.read_encoded(599) if name == "encoded" else storage.read(torch.tensor([599]))

    with pytest.raises(DataError, match=r"data\.h5 cannot be read"):
        read()
    storage.close()
    path.unlink()
    with pytest.raises(DataError, match=r"it is missing|No such file"):
        read()
    assert open_files(directory) == []


def test_a_sample_that_the_drive_cannot_read_is_named_and_the_others_are_read(
    written: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = hdf5.EncodedStorage(INFO, Place(written["encoded"]), True)
    begin, pread = int(storage._positions[3]), os.pread

    def broken(file: int, n_bytes: int, position: int) -> bytes:
        if position == begin:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, n_bytes, position)

    monkeypatch.setattr(os, "pread", broken)
    with closing(storage):
        with pytest.raises(
            SampleError, match=r"cannot be read \(Input/output error\); delete \S+ and it is made again"
        ):
            storage.read_encoded(3)
        assert storage.read_encoded(4)
