"""vitprof.engine.data.mnist, without a network: closed port, silent server, and a small server of our own."""

import gzip
import hashlib
import http.server
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchvision.datasets import MNIST

from vitprof.engine.data import digits, idx, mnist
from vitprof.engine.data.datasets import prepare
from vitprof.engine.data.idx import read_split
from vitprof.engine.data.manifest import MANIFEST
from vitprof.errors import DataError, JobStopped


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
    for name in idx.FILES:
        packed = gzip.compress((idx.raw_dir(made) / name).read_bytes())
        (mirror / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(mirror))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
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
    with pytest.raises(DataError) as caught:
        prepare("mnist")
    message = str(caught.value)
    assert message.startswith("MNIST could not be downloaded (")
    assert message.endswith("); choose the data set 'digits', which is made here")
    assert "\n" not in message
    assert [p.name for p in data.iterdir()] == [".mnist.lock"]
    assert capsys.readouterr().out == ""
    assert sys.stdout is stdout
    assert socket.getdefaulttimeout() == before
    return message


def test_offline(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/", "http://127.0.0.1:9/again/"])
    message = assert_refused(data, capsys)
    assert message.count("Connection refused") == 1


def test_silent_server(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(mnist, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and never answers
        monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.getsockname()[1]}/"])
        assert "timed out" in assert_refused(data, capsys)


def test_a_page_instead_of_the_file(served: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (served / f"{idx.FILES[2]}.gz").write_text("<html>please log in</html>")
    assert "corrupted" in assert_refused(data, capsys)


def test_file_not_on_the_server(served: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (served / f"{idx.FILES[3]}.gz").unlink()
    assert "404" in assert_refused(data, capsys)


def test_download(served: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[float] = []
    root = prepare("mnist", progress=lambda fraction, message: told.append(fraction))
    assert root == data / "mnist"
    assert capsys.readouterr().out == ""
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, 1)
    for name in idx.FILES:
        assert (idx.raw_dir(root) / name).read_bytes() == (idx.raw_dir(tmp_path / "made") / name).read_bytes()
    assert sorted(p.name for p in idx.raw_dir(root).iterdir()) == sorted(idx.FILES)  # the archives are gone
    assert {p.name for p in data.iterdir()} == {".mnist.lock", "mnist"}
    assert len(MNIST(str(root), train=False, download=False)) == 20
    assert read_split(root, True)[0].shape == (60, 28, 28)
    # It is there: checked against the manifest, not downloaded again.
    for archive in served.iterdir():
        archive.unlink()
    assert prepare("mnist") == root
    (idx.raw_dir(root) / idx.FILES[1]).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{idx.FILES[1]} is damaged .size differs from {MANIFEST}"):
        prepare("mnist")


def test_stopped_before_and_after_the_download(served: Path, data: Path) -> None:
    for n in (0, 1):
        asked = iter(range(100))
        with pytest.raises(JobStopped, match="MNIST"):
            prepare("mnist", stop=lambda asked=asked, n=n: next(asked) == n)
        assert [p.name for p in data.iterdir()] == [".mnist.lock"]


def test_disk_full_is_not_called_a_network_problem(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
