"""What killed programs left is cleared; what belongs to anybody else, or is in use, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.engine_fixtures import gone, wait_until
from vitprof.home import process_space, temporary_prefix
from vitprof.jobs.orphans import OWNER, clear_orphans, owner_mark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces and /proc of Linux")
JOB = """
import sys, tempfile, multiprocessing.util
from pathlib import Path
from vitprof.home import temporary_prefix
from vitprof.jobs.orphans import mark_multiprocessing
mark_multiprocessing()
Path(tempfile.mkdtemp(prefix=temporary_prefix("watch")), "socket").touch()
Path(multiprocessing.util.get_temp_dir(), "listener").touch()
tempfile.mkstemp(prefix=temporary_prefix("told"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files lie in this test."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def ended() -> int:
    """The id of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a job of a gone vitprof started, and that was stopped."""
    owner = subprocess.Popen(["true"])
    owner.wait()
    mark = {OWNER: f"{process_space()}-{owner.pid}"}
    yield from _stopped(mark)


def _stopped(mark: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"], env=os.environ | mark)
    wait_until(lambda: psutil.Process(process.pid).name() == "sleep", "the program")
    process.send_signal(signal.SIGSTOP)
    # or ended at once: whatever starts a job on this machine clears orphans
    stopped_or_ended = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(lambda: psutil.Process(process.pid).status() in stopped_or_ended, "a stopped process")
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_job_left_goes_when_it_is_gone_and_not_before(temporary: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert job.stdout is not None
    assert job.stdin is not None
    with job.stdin, job.stdout:
        assert job.stdout.readline() == b"ready\n"
        made = sorted(os.listdir(temporary))
        assert sorted(name.partition("-")[0] for name in made) == ["pymp", "vitprof", "vitprof"]
        clear_orphans()
        assert sorted(os.listdir(temporary)) == made
        job.kill()
        job.wait()
    clear_orphans()
    assert os.listdir(temporary) == []


def test_what_is_not_ours_stays(temporary: Path, ended: int) -> None:
    elsewhere = f"vitprof-watch-0-{ended}-abc"  # another container's, where the same number may be alive
    names = [
        "pymp-of-another-program",
        "vitprof-notes",
        elsewhere,
        f"vitprof-watch-{process_space()}-{os.getpid()}-abc",
    ]
    for name in names:
        (temporary / name).mkdir()
    ours = f"vitprof-watch-{process_space()}-{ended}-"
    (temporary / "target").mkdir()
    (temporary / f"{ours}link").symlink_to(temporary / "target")
    kept = {*names, "target", f"{ours}link"}
    if os.geteuid() == 0:
        (temporary / f"{ours}theirs").mkdir()
        os.chown(temporary / f"{ours}theirs", 65534, 65534)
        kept.add(f"{ours}theirs")
    (temporary / f"{ours}abc").mkdir()
    assert temporary_prefix("watch").startswith(f"vitprof-watch-{process_space()}-{os.getpid()}-")
    clear_orphans()
    assert set(os.listdir(temporary)) == kept


def test_a_stopped_process_that_lost_its_owner_is_ended(temporary: Path, stopped: subprocess.Popen[bytes]) -> None:
    clear_orphans()
    assert gone([psutil.Process(stopped.pid)])
    assert stopped.wait() == -signal.SIGKILL


def test_one_whose_owner_lives_is_left_alone(temporary: Path) -> None:
    for process in _stopped({OWNER: owner_mark()}):
        clear_orphans()
        assert process.poll() is None
