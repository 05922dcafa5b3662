"""vitprof.engine.data.idx: what is written is read back, what is damaged is refused with a message that helps."""

import errno
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitprof.engine.data import idx
from vitprof.errors import DataError

shapes = st.one_of(
    st.tuples(st.integers(0, 50)), st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9))
).flatmap(lambda shape: arrays(np.uint8, shape))


@pytest.mark.slow
@given(array=shapes)
def test_round_trip(array: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        idx.write_idx(path, array)
        back = idx.read_idx(path)
        assert path.stat().st_size == 4 + 4 * array.ndim + array.size
    assert (back.dtype, back.shape) == (np.uint8, array.shape)
    assert np.array_equal(back, array)
    back[...] = 0  # raises if it cannot be written to


@given(content=st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\0\0\x08\x01" + tail))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(content)
        with suppress(DataError):  # nothing else may be raised
            assert content.endswith(idx.read_idx(path).tobytes())


def test_strided_input_is_written_in_order(tmp_path: Path) -> None:
    array = np.arange(4 * 6 * 6, dtype=np.uint8).reshape(4, 6, 6)[::2, :, ::-2]
    idx.write_idx(tmp_path / "file", array)
    assert np.array_equal(idx.read_idx(tmp_path / "file"), array)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 2), np.uint8), np.zeros((), np.uint8)])
def test_other_arrays_are_a_programming_error(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="IDX here holds uint8"):
        idx.write_idx(tmp_path / "file", array)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "ends inside its header"),
        (b"\0\0\x08", "ends inside its header"),
        (struct.pack(">I", 0x803), "ends inside its header"),
        (struct.pack(">3I", 0x803, 1, 2), "ends inside its header"),
        (struct.pack(">2I", 0x802, 0), "magic number 0x00000802"),
        (struct.pack(">2I", 0xD01, 0), "magic number 0x00000d01"),
        (struct.pack("<2I", 0x801, 0), "magic number 0x01080000"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "magic number 0x1f8b0800"),  # a .gz that was only renamed
        (struct.pack(">2I", 0x801, 5) + b"abcd", "12 bytes long, and its header says 13"),
        (struct.pack(">2I", 0x801, 5) + b"abcdef", "14 bytes long, and its header says 13"),
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(7), "23 bytes long, and its header says 24"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "16 bytes long, and its header says"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx.read_idx(path)
    message = str(caught.value)
    assert why in message
    assert str(path) in message
    assert "delete the data set's directory" in message
    assert "\n" not in message


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is missing"):
        idx.read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match="Is a directory"):
        idx.read_idx(tmp_path)


def test_write_failures_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or directory; set VITPROF_HOME"):
        idx.write_idx(tmp_path / "no" / "file", np.zeros(3, np.uint8))
    if Path("/dev/full").exists():
        full = Path("/dev/full")
        with (
            pytest.raises(DataError, match="disk full while writing /dev/full"),
            idx.writing(full),
            full.open("wb") as f,
        ):
            f.write(b"x")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (errno.ENOSPC, "disk full while writing"),
        (errno.EDQUOT, "disk quota full while writing"),
        (errno.EFBIG, "raise the limit (ulimit -f)"),
        (errno.EROFS, "Read-only file system; set VITPROF_HOME"),
    ],
)
def test_write_error_says_what_to_do(tmp_path: Path, code: int, why: str) -> None:
    message = str(idx.write_error(tmp_path, OSError(code, os.strerror(code))))
    assert why in message
    assert str(tmp_path) in message
    assert "\n" not in message


def test_split_files_follow_torchvision(tmp_path: Path) -> None:
    assert idx.split_files(tmp_path, True)[0] == tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    assert idx.split_files(tmp_path, False)[1] == tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
