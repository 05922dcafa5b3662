"""Directories that go away, with their process or after it."""

import os
import signal
from pathlib import Path

import pytest

from tests.engine_fixtures import error_in_one_line
from vitprof.engine.locations import remove_leftovers, scratch_directory
from vitprof.errors import DataError


class Owner:
    """A process that has a scratch directory."""

    def __init__(self, parent: Path) -> None:
        self.read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                with scratch_directory(parent, "memmap") as scratch:
                    (scratch / "train.npy").write_bytes(b"x")
                    os.write(write, str(scratch).encode())
                    signal.sigwait({signal.SIGTERM})
            finally:
                os._exit(0)
        os.close(write)
        self.scratch = Path(os.read(self.read, 4096).decode())

    def end(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)
        os.waitpid(self.pid, 0)
        os.close(self.read)


def test_nothing_stays(tmp_path: Path) -> None:
    parent = tmp_path / "home" / "locations"
    with scratch_directory(parent, "memmap") as one, scratch_directory(parent, "memmap") as other:
        assert one != other
        assert one.name.startswith("memmap.")
        (one / "deep").mkdir()
        (one / "deep" / "file").touch()
    assert not parent.exists()
    with pytest.raises(KeyError, match="mine"), scratch_directory(tmp_path / "locations", "memmap"):
        raise KeyError("mine")
    assert not list(tmp_path.glob("locations*"))


def test_what_killed_processes_leave_is_removed_and_nothing_else(tmp_path: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for the owners, who wait for it
    killed, alive = Owner(tmp_path), Owner(tmp_path)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    killed.end(signal.SIGKILL)
    elsewhere = tmp_path / "memmap.another-host.1.0123abcd"
    elsewhere.mkdir()
    (tmp_path / f"{elsewhere.name}.lock").touch()
    (tmp_path / "notes").mkdir()
    assert killed.scratch.is_dir()
    try:
        with scratch_directory(tmp_path, "memmap") as mine:
            remove_leftovers(tmp_path)
            assert mine.is_dir()
            assert not killed.scratch.exists()
            assert not killed.scratch.with_name(f"{killed.scratch.name}.lock").exists()
            assert (alive.scratch / "train.npy").exists()
            assert elsewhere.is_dir()
            assert (tmp_path / "notes").is_dir()
    finally:
        alive.end(signal.SIGTERM)
    assert not alive.scratch.exists()


def test_a_parent_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        error_in_one_line(DataError, match=r"cannot write .*file"),
        scratch_directory(tmp_path / "file", "x"),
    ):
        pass
    remove_leftovers(tmp_path / "nowhere")
