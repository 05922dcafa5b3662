"""Directories that go away, with their process or after it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from vitprof.engine.locations import remove_leftovers, scratch_directory
from vitprof.errors import DataError

OWNER = """
import sys
from pathlib import Path
from vitprof.engine.locations import scratch_directory
with scratch_directory(Path(sys.argv[1]), "memmap") as scratch:
    (scratch / "train.npy").write_bytes(b"x")
    print(scratch, flush=True)
    sys.stdin.read()
"""


def owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a scratch directory, and that directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


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
    killed, left = owner(tmp_path)
    alive, used = owner(tmp_path)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        elsewhere = tmp_path / "memmap.another-host.1.0123abcd"
        elsewhere.mkdir()
        (tmp_path / f"{elsewhere.name}.lock").touch()
        (tmp_path / "notes").mkdir()
        assert left.is_dir()
        with scratch_directory(tmp_path, "memmap") as mine:
            remove_leftovers(tmp_path)
            assert mine.is_dir()
            assert not left.exists()
            assert not left.with_name(f"{left.name}.lock").exists()
            assert (used / "train.npy").exists()
            assert elsewhere.is_dir()
            assert (tmp_path / "notes").is_dir()
    finally:
        for process in (killed, alive):
            process.communicate()
    assert alive.returncode == 0
    assert not used.exists()


def test_a_parent_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write to .*file") as caught, scratch_directory(tmp_path / "file", "x"):
        pass
    assert "\n" not in str(caught.value)
    remove_leftovers(tmp_path / "nowhere")
