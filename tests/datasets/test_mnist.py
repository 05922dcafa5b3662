"""MNIST: what is written is read back, what is damaged is refused with a message that helps; the download."""

import errno
import functools
import gzip
import hashlib
import http.server
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torchvision.datasets import MNIST

from tests.engine_fixtures import error_in_one_line
from vitprof.datasets import digits, mnist
from vitprof.datasets.files import write_error, writing
from vitprof.datasets.mnist import read_split
from vitprof.datasets.on_disk import MANIFEST, prepare
from vitprof.errors import DataError, JobStopped

shapes = st.one_of(
    st.tuples(st.integers(0, 50)),
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9)),
).flatmap(lambda shape: arrays(np.uint8, shape))


@settings(max_examples=25)
@given(array=shapes)
def test_round_trip(array: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        mnist.write_idx(path, array[..., ::-1])  # strided input is written in order
        back = mnist.read_idx(path)[..., ::-1]
        assert path.stat().st_size == 4 + 4 * array.ndim + array.size
    assert (back.dtype, back.shape) == (np.uint8, array.shape)
    assert np.array_equal(back, array)
    back[...] = 0  # raises if it cannot be written to


@settings(max_examples=40)
@given(
    content=st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\0\0\x08\x01" + tail)
)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(content)
        with suppress(DataError):  # nothing else may be raised
            assert content.endswith(mnist.read_idx(path).tobytes())


def test_other_arrays_are_a_programming_error(tmp_path: Path) -> None:
    for array in (np.zeros(3), np.zeros((2, 2), np.uint8), np.zeros((), np.uint8)):
        with pytest.raises(ValueError, match="IDX here holds uint8"):
            mnist.write_idx(tmp_path / "file", array)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "ends inside its header"),
        (struct.pack(">3I", 0x803, 1, 2), "ends inside its header"),
        (struct.pack(">2I", 0x802, 0), "magic number 0x00000802"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "magic number 0x1f8b0800"),  # a .gz that was only renamed
        (struct.pack(">2I", 0x801, 5) + b"abcd", "12 bytes long, and its header says 13"),
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(9), "25 bytes long, and its header says 24"),
        (
            struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1),
            "16 bytes long, and its header says",
        ),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(content)
    with error_in_one_line(DataError, match=f"{path} .*{why}.* and it is made again"):
        mnist.read_idx(path)


def test_failures_to_read_and_to_write_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        mnist.read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match="Is a directory"):
        mnist.read_idx(tmp_path)
    with pytest.raises(DataError, match="No such file or directory; set VITPROF_HOME"):
        mnist.write_idx(tmp_path / "no" / "file", np.zeros(3, np.uint8))
    full = Path("/dev/full")
    if full.exists():
        with (
            pytest.raises(DataError, match="disk full while writing /dev/full"),
            writing(full),
            full.open("wb") as f,
        ):
            f.write(b"x")
    for code, why in {
        errno.ENOSPC: "disk full while writing",
        errno.EDQUOT: "disk full while writing",
        errno.EFBIG: "raise the limit (ulimit -f)",
        errno.EROFS: "Read-only file system; set VITPROF_HOME",
    }.items():
        message = str(write_error(tmp_path, OSError(code, os.strerror(code))))
        assert why in message
        assert str(tmp_path) in message
        assert "\n" not in message


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, and no proxy between us and 127.0.0.1. Gives the directory that holds the data sets."""
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "home" / "data"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mirror on 127.0.0.1 with a small set as MNIST's four archives; gives the directory it serves."""
    mirror, made = tmp_path / "mirror", tmp_path / "made"
    mirror.mkdir()
    made.mkdir()
    digits.make(made, n_train=60, n_test=20)
    resources = []
    for name in mnist.FILES:
        packed = gzip.compress((mnist.raw_dir(made) / name).read_bytes())
        (mirror / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=mirror)
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="mirror")
        thread.start()
        monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        monkeypatch.setattr(MNIST, "resources", resources)
        yield mirror
        server.shutdown()
        thread.join()


def assert_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """`prepare` fails with the one line, leaves no file, prints nothing to stdout, puts the timeout back."""
    before = socket.getdefaulttimeout()
    stdout = sys.stdout
    advice = "choose the data set 'digits', which is made here"
    with error_in_one_line(
        DataError, match=rf"^MNIST could not be downloaded \(.*\); {advice}$"
    ) as caught:
        prepare("mnist")
    assert ([p.name for p in data.iterdir()], capsys.readouterr().out) == ([".mnist.lock"], "")
    assert sys.stdout is stdout
    assert socket.getdefaulttimeout() == before
    return str(caught.value)


def test_offline(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/", "http://127.0.0.1:9/again/"])
    assert assert_refused(data, capsys).count("Connection refused") == 1


def test_silent_server(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and never answers
        monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.getsockname()[1]}/"])
        assert "timed out" in assert_refused(data, capsys)


def test_a_page_instead_of_the_file_and_none(
    served: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (served / f"{mnist.FILES[2]}.gz").write_text("<html>please log in</html>")
    assert "corrupted" in assert_refused(data, capsys)
    (served / f"{mnist.FILES[2]}.gz").unlink()
    assert "404" in assert_refused(data, capsys)


def test_download(
    served: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[float] = []
    root = prepare("mnist", progress=lambda fraction, message: told.append(fraction))
    assert root == data / "mnist"
    assert capsys.readouterr().out == ""
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, 1)
    for name in mnist.FILES:
        assert (mnist.raw_dir(root) / name).read_bytes() == (
            mnist.raw_dir(tmp_path / "made") / name
        ).read_bytes()
    assert sorted(p.name for p in mnist.raw_dir(root).iterdir()) == sorted(
        mnist.FILES
    )  # the archives are gone
    assert {p.name for p in data.iterdir()} == {".mnist.lock", "mnist"}
    assert len(MNIST(str(root), train=False, download=False)) == 20
    assert read_split(root, True)[0].shape == (60, 28, 28)
    # It is there: checked against the manifest, not downloaded again.
    for archive in served.iterdir():
        archive.unlink()
    assert prepare("mnist") == root
    (mnist.raw_dir(root) / mnist.FILES[1]).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{mnist.FILES[1]} is damaged .it differs from {MANIFEST}"):
        prepare("mnist")


def test_stopped_before_and_after_the_download(served: Path, data: Path) -> None:
    for answers in ([True], [False, True]):
        with pytest.raises(JobStopped, match="MNIST"):
            prepare("mnist", stop=Mock(side_effect=answers))
        assert [p.name for p in data.iterdir()] == [".mnist.lock"]


def test_a_full_disk_is_named(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no network problem."""
    monkeypatch.setattr(mnist, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(DataError, match=r"disk full: .* needs 1152921504606\.8 MB and has"):
        prepare("mnist")
    monkeypatch.setattr(mnist, "NEEDED_BYTES", 0)

    def full(*args: object, **kwargs: object) -> None:
        print("chatter of torchvision")  # noqa: T201
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MNIST, "download", full)
    with pytest.raises(DataError, match="disk full while writing"):
        prepare("mnist")
    assert [p.name for p in data.iterdir()] == [".mnist.lock"]
    assert capsys.readouterr() == ("", "chatter of torchvision\n")
