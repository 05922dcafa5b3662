"""Copying a tree: everything, or an error and nothing."""

import contextlib
import os
import resource
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.engine.locations import Time
from tests.engine_fixtures import error_in_one_line, never, silent, survives, ticking
from vitprof.config.drives import SlowDrive
from vitprof.engine.locations.copying import BLOCK_BYTES, copy_tree, tree_bytes, walk
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.errors import DataError, JobStopped


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with small, empty and large files, a link and a nested folder."""
    top = tmp_path / "source"
    (top / "train" / "007").mkdir(parents=True)
    for i in range(30):
        (top / "train" / "007" / f"{i:03d}.jpg").write_bytes(os.urandom(1000 + i))
    (top / "empty").touch()
    (top / "big.npy").write_bytes(os.urandom(3 * BLOCK_BYTES + 17))
    (top / "exact").write_bytes(os.urandom(BLOCK_BYTES))
    (top / "link").symlink_to(top / "exact")
    return top


def contents(top: Path) -> dict[str, bytes]:
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_everything_is_copied(source: Path, tmp_path: Path) -> None:
    progress, target = Mock(), tmp_path / "deep" / "target"
    copied = copy_tree(
        source, target, throttle=None, progress=progress, stop=never, clock=ticking(1.0)
    )
    assert contents(target) == contents(source)
    assert copied.n_bytes == tree_bytes(source)
    assert copied.seconds > 0
    told = [call.args for call in progress.call_args_list]
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert told[-1][0] == 1
    assert "MB" in told[-1][1]
    assert told[-2][1].startswith("copied 5.")  # of 5.24 MB, and how fast
    assert told[-2][1].endswith("MB/s")
    (tmp_path / "nothing").mkdir()
    assert (
        copy_tree(
            tmp_path / "nothing", tmp_path / "t", throttle=None, progress=silent, stop=never
        ).n_bytes
        == 0
    )
    assert (tmp_path / "t").is_dir()


@pytest.mark.parametrize(("serial", "at_least"), [(True, 34 * 0.1), (False, 0.0)])
def test_a_slow_drive_is_asked_for_files_and_bytes(
    source: Path, tmp_path: Path, serial: bool, at_least: float
) -> None:
    time = Time()
    drive = TokenBucket(
        tmp_path / "drive", SlowDrive(1.0, 100.0, serial), clock=time, sleep=time.sleep
    )
    copied = copy_tree(
        source, tmp_path / "t", throttle=drive, progress=silent, stop=never, clock=time
    )
    assert contents(tmp_path / "t") == contents(source)
    assert copied.seconds >= at_least + 0.99 * copied.n_bytes / 1e6  # not real time: nothing slept


def test_latencies_are_waited_for_by_many_threads(source: Path, tmp_path: Path) -> None:
    """At 34 files of 0.1 s each, one reader would take 3.4 s of the drive's time beside what the bytes take."""
    barrier = threading.Barrier(8)  # breaks unless eight readers wait at once

    class Meeting(TokenBucket):
        def wait(self, n_bytes: int, n_files: int, stop: object = None) -> None:
            if n_files and not met.is_set():
                with contextlib.suppress(threading.BrokenBarrierError):  # one that came late
                    barrier.wait(60)
                    met.set()
                    barrier.abort()

    met = threading.Event()
    drive = Meeting(tmp_path / "drive", SlowDrive(30.0, 207.0, serial=False))
    copy_tree(source, tmp_path / "t", throttle=drive, progress=silent, stop=never)
    assert met.is_set()
    assert contents(tmp_path / "t") == contents(source)


@pytest.mark.parametrize("serial", [True, False])
def test_a_stop_ends_a_wait_and_leaves_nothing(source: Path, tmp_path: Path, serial: bool) -> None:
    drive = TokenBucket(tmp_path / "drive", SlowDrive(1e-6, 1e9, serial))
    with pytest.raises(JobStopped, match="stopped while data were being copied"):
        copy_tree(source, tmp_path / "t", throttle=drive, progress=silent, stop=lambda: True)
    assert not (tmp_path / "t").exists()

    with pytest.raises(KeyError, match="mine"):  # an error of progress ends it too
        copy_tree(
            source,
            tmp_path / "t",
            throttle=None,
            progress=Mock(side_effect=KeyError("mine")),
            stop=never,
        )
    assert not (tmp_path / "t").exists()


def check_fails(source: Path, tmp_path: Path, names: str) -> None:
    with error_in_one_line(DataError, match=names):
        copy_tree(source, tmp_path / "t", throttle=None, progress=silent, stop=never)
    assert not (tmp_path / "t").exists()


def test_what_cannot_be_read_is_named(source: Path, tmp_path: Path) -> None:
    check_fails(tmp_path / "nowhere", tmp_path, "nowhere cannot be read")
    os.mkfifo(source / "pipe")  # no file, and no reason to hang
    check_fails(source, tmp_path, "pipe is neither")
    (source / "pipe").unlink()
    (source / "train" / "gone.jpg").symlink_to("/nowhere")
    check_fails(source, tmp_path, "train/gone.jpg cannot be read")


def test_no_room_is_seen_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    with (source / "sparse").open("wb") as file:
        file.truncate(2 * free.f_bavail * free.f_frsize + 2**30)
    check_fails(source, tmp_path, "disk full: .* needs .* choose another location")


def test_a_file_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    """The system's own error in the middle of one, where a process may write 1 MiB."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES, BLOCK_BYTES))
        check_fails(source, tmp_path, r"big\.npy exceeds the limit on file size")

    survives(work)


def test_a_full_disk_is_called_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(
        os, "pwrite", full
    )  # a real one takes a file system of its own, which takes root
    check_fails(
        source, tmp_path, "disk full while writing .*; free some space or choose another location"
    )


def test_a_target_that_is_there_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").touch()
    with pytest.raises(DataError, match="/t"):
        copy_tree(source, tmp_path / "t", throttle=None, progress=silent, stop=never)
    assert (tmp_path / "t" / "mine").exists()


def test_in_order_of_their_names_and_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "train" / "007").mkdir(parents=True)
    for name, n_bytes in (("train/007/b.jpg", 3), ("train/007/a.jpg", 2), ("z", 5), ("empty", 0)):
        (tmp_path / name).write_bytes(b"x" * n_bytes)
    in_order = [("empty", 0), ("z", 5), ("train/007/a.jpg", 2), ("train/007/b.jpg", 3)]
    assert (list(walk(tmp_path)), tree_bytes(tmp_path)) == (in_order, 10)
    (tmp_path / "train" / "up").symlink_to(tmp_path)
    with pytest.raises(DataError, match="Too many levels of symbolic links"):
        list(walk(tmp_path))
