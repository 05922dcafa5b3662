"""vitprof.datasets.on_disk: made once, checked always, never half there."""

import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests import ROOT
from tests.engine.storage.preparing import fill
from tests.engine_fixtures import error_in_one_line, small_digits, survives
from tests.forking import exit_status_of, fork_doing
from vitprof.datasets import digits, mnist
from vitprof.datasets.mnist import read_split
from vitprof.datasets.on_disk import MANIFEST, prepare
from vitprof.errors import ConfigError, DataError, JobStopped, VitprofError


@pytest.fixture
def made(vitprof_home: Path) -> Iterator[Path]:
    """Where the data sets lie in a home of our own in which `digits` is small."""
    with small_digits(vitprof_home):
        yield vitprof_home / "data"


def there(data: Path) -> list[str]:
    """The names in the directory of the data sets, without the lock files."""
    return sorted(p.name for p in data.iterdir() if not p.name.endswith(".lock"))


def one_line(call: Callable[[], object], kind: type[Exception] = DataError) -> str:
    """The message of the error that `call` raises: one line."""
    with error_in_one_line(kind) as caught:
        call()
    return str(caught.value)


def test_made_once_and_read(made: Path) -> None:
    told: list[tuple[float, str]] = []
    root = prepare("digits", progress=lambda *progress: told.append(progress))
    assert root == made / "digits"
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert (told[0][0], told[-1]) == (0, (1, "digits is ready"))
    assert there(made) == ["digits"]
    images, labels = read_split(root, True)
    assert images.shape == (600, 28, 28)
    assert labels.shape == (600,)
    manifest = json.loads((root / MANIFEST).read_text())
    assert (manifest["maker"], manifest["maker"]["seed"]) == (digits.IDENTITY, digits.SEED)
    assert manifest["files"][mnist.FILES[0]]["size"] == 16 + 600 * 784

    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in root.rglob("*")}
    told.clear()
    assert prepare("digits", progress=lambda *progress: told.append(progress)) == root
    assert told == [(1, "digits is ready")]
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in root.rglob("*")} == before


def test_unknown_name(made: Path) -> None:
    assert "choose one of digits, mnist, photos" in one_line(
        lambda: prepare("didgits"), ConfigError
    )
    assert "digits always has" in one_line(lambda: prepare("digits", 100), ConfigError)


def test_importing_and_making_need_no_torch(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tests.engine_fixtures import small_digits
from vitprof.datasets import on_disk
with small_digits(Path(sys.argv[1])):
    on_disk.prepare("digits")
print([*sys.modules])
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    assert "'numpy'" in ended.stdout
    assert "'torch" not in ended.stdout + ended.stderr


def test_damaged_files(made: Path) -> None:
    root = prepare("digits")
    for path in (mnist.raw_dir(root) / name for name in (mnist.FILES[0], mnist.FILES[3])):
        content = path.read_bytes()

        def expect(what: str, path: Path = path) -> None:
            message = one_line(lambda: prepare("digits"))
            assert message.startswith(f"{path} {what}")
            assert message.endswith(f"; delete {root} and it is made again")

        for damaged in (content[:-1], content + b"x", content[:-1] + bytes([content[-1] ^ 1])):
            path.write_bytes(damaged)
            expect("is damaged (it differs")
        path.unlink()
        expect("cannot be read (No such file")
        path.mkdir()
        expect("cannot be read (Is a directory")
        path.rmdir()
        path.write_bytes(content)
        assert prepare("digits") == root


def test_damaged_manifest_manifest_without_a_file_and_no_manifest(made: Path) -> None:
    root = prepare("digits")
    manifest = json.loads((root / MANIFEST).read_text())
    for content in (b"", b"{", b"[]", b"null", b"{}", b'{"maker": 1, "files": {}}', b"\xff\xfe"):
        (root / MANIFEST).write_bytes(content)
        assert f"{MANIFEST} is damaged; delete {root}" in one_line(lambda: prepare("digits"))
    del manifest["files"][mnist.FILES[2]]
    (root / MANIFEST).write_text(json.dumps(manifest))
    assert f"{mnist.FILES[2]} is damaged" in one_line(lambda: prepare("digits"))
    (root / MANIFEST).unlink()
    assert f"{MANIFEST} is missing; delete {root}" in one_line(lambda: prepare("digits"))
    (root / MANIFEST).mkdir()
    assert "cannot be read" in one_line(lambda: prepare("digits"))


def test_a_file_in_the_way_stays_and_an_empty_directory_is_no_data_set(made: Path) -> None:
    made.mkdir(parents=True)
    (made / "digits").write_text("mine")
    assert f"cannot write {made / 'digits'}: Not a directory" in one_line(lambda: prepare("digits"))
    assert (there(made), (made / "digits").read_text()) == (["digits"], "mine")
    (made / "digits").unlink()
    (made / "digits").mkdir()
    assert read_split(prepare("digits"), False)[0].shape == (100, 28, 28)


def test_another_version_is_made_silently_and_stays_if_that_fails(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare("digits")
    before = read_split(root, True)[0]
    (root / "old").touch()
    monkeypatch.setattr(digits, "IDENTITY", digits.IDENTITY | {"version": 99})
    with pytest.raises(JobStopped):
        prepare("digits", stop=lambda: True)
    assert np.array_equal(read_split(root, True)[0], before)
    assert prepare("digits") == root
    assert not (root / "old").exists()
    assert (json.loads((root / MANIFEST).read_text())["maker"]["version"], there(made)) == (
        99,
        ["digits"],
    )


def test_a_stop_and_any_failure_leave_nothing(made: Path) -> None:
    for chunks in (0, 2):
        with pytest.raises(JobStopped):
            prepare("digits", stop=Mock(side_effect=[False] * chunks + [True]))
        assert not there(made)
    with pytest.raises(KeyboardInterrupt):
        prepare("digits", progress=Mock(side_effect=[None, None, KeyboardInterrupt]))
    assert not there(made)


def test_killed_while_making(made: Path) -> None:
    """SIGKILL leaves a temporary directory; the next one makes the set and removes it, and none of other sets."""

    def kill_at_the_end(fraction: float, _: str) -> None:
        if fraction > 0.9:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        prepare("digits", progress=kill_at_the_end)

    assert exit_status_of(fork_doing(work)) == -signal.SIGKILL
    assert len(there(made)) == 1
    assert not (made / "digits").exists()
    for name in (".digits.old", ".mnist.partial-0123abcd"):
        (made / name / "MNIST").mkdir(parents=True)
    prepare("digits")
    assert there(made) == [".mnist.partial-0123abcd", "digits"]


@pytest.mark.parametrize("outdated", [False, True])
def test_two_at_once(made: Path, monkeypatch: pytest.MonkeyPatch, outdated: bool) -> None:
    """One makes it, the other waits for it."""
    if outdated:
        with monkeypatch.context() as patch:
            patch.setattr(digits, "IDENTITY", digits.IDENTITY | {"version": 0})
            prepare("digits")
    made_by: list[int] = []
    messages: queue.Queue[str] = queue.Queue()
    make = digits.make

    def make_and_wait(*args: Any, **options: Any) -> None:
        make(*args, **options)
        made_by.append(threading.get_ident())
        while messages.get(timeout=60) != "another process is making this data set":
            pass

    monkeypatch.setattr(digits, "make", make_and_wait)
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(prepare, "digits", progress=lambda _, message: messages.put(message))
            for _ in range(2)
        ]
        assert [call.result() for call in calls] == [made / "digits"] * 2
    assert (len(made_by), there(made)) == (1, ["digits"])


def test_file_size_limit(made: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        message = one_line(lambda: prepare("digits"))
        assert (
            "train-images-idx3-ubyte exceeds the limit on file size; raise the limit (ulimit -f)"
            in message
        )

    survives(work)
    assert not there(made)


def test_disk_full(made: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(small_disk))
    filler = fill(small_disk, 300_000)
    message = one_line(lambda: prepare("digits"))
    assert f"disk full: {small_disk / 'data'} needs 0.6 MB and has 0.3 MB free" in message
    # Somebody else fills the disk after we have looked.
    with monkeypatch.context() as patch:
        patch.setattr(
            shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
        )
        message = one_line(lambda: prepare("digits"))
        assert message.startswith("disk full while writing")
        assert "train-images-idx3-ubyte; free some space or set VITPROF_HOME" in message
        assert not there(small_disk / "data")
    filler.unlink()  # following the advice
    assert prepare("digits") == small_disk / "data" / "digits"


def test_a_made_set_is_used_on_a_read_only_disk(
    made: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(small_disk))
    root = prepare("digits")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert prepare("digits") == root
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    shutil.rmtree(root)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "Read-only file system; set VITPROF_HOME" in one_line(
        lambda: prepare("digits"), VitprofError
    )


def test_unusable_home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for home in (f"{tmp_path}/file/home", "/proc/vitprof", "/proc/version"):
        monkeypatch.setenv("VITPROF_HOME", home)
        message = one_line(lambda: prepare("digits"), VitprofError)
        assert message.startswith("cannot write to ")
        assert home in message
        assert "set VITPROF_HOME" in message


def test_read_split_refuses_what_does_not_belong_together(tmp_path: Path) -> None:
    digits.make(tmp_path, n_train=20, n_test=10)
    images, labels = mnist.split_files(tmp_path, True)
    mnist.write_idx(labels, np.zeros(19, np.uint8))
    assert f"delete {tmp_path} and it is made again" in one_line(lambda: read_split(tmp_path, True))
    mnist.write_idx(labels, np.full(20, 10, np.uint8))
    assert "labels 0 to 9" in one_line(lambda: read_split(tmp_path, True))
    mnist.write_idx(labels, np.zeros(20, np.uint8))
    mnist.write_idx(images, np.zeros((20, 32, 32), np.uint8))
    assert "28 x 28" in one_line(lambda: read_split(tmp_path, True))
    images.unlink()
    assert "No such file" in one_line(lambda: read_split(tmp_path, True))
