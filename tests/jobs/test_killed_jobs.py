"""A job that was killed: for memory, by whose limit, or not for memory at all; what it left is cleared."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.engine_fixtures import gone, wait_until
from vitprof.home import process_space, temporary_prefix
from vitprof.jobs import killed_jobs

OOM = "low 0\nhigh 0\nmax 7\noom {oom}\noom_kill {kills}\n"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's /proc and /sys/fs/cgroup, as files of this test."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 12\noom_kill 4\n")
    monkeypatch.setattr(killed_jobs, "ROOT", tmp_path)
    return tmp_path


def version_2(system: Path, *, oom: int, kills: int) -> None:
    """A group without a limit below one that has one, as systemd makes them."""
    (system / "proc/self/cgroup").write_text("0::/user/job\n")
    for name, limit, reached in (("user", "4294967296", oom), ("user/job", "max", 0)):
        group = system / "sys/fs/cgroup" / name
        group.mkdir(exist_ok=True)
        (group / "memory.stat").touch()
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.events").write_text(OOM.format(oom=reached, kills=kills))


def said(system: Path, **after: int) -> str:
    version_2(system, oom=2, kills=1)
    witness = killed_jobs.MemoryWitness(os.getpid())
    version_2(system, **after)
    return witness.killed_words()


def test_a_groups_limit_the_machines_memory_and_a_kill_by_somebody_are_told_apart(
    system: Path,
) -> None:
    words = said(system, oom=3, kills=2)
    assert (
        "its control group (a container's, or the session's) reached its limit of 4.00 GiB" in words
    )
    assert "try a smaller batch size" in words
    assert killed_jobs.memory_limit() == 2**32
    assert "the machine's memory of " in said(system, oom=2, kills=2)
    (system / "proc/vmstat").write_text("oom_kill 5\n")  # somebody else's process, in another group
    assert said(system, oom=2, kills=1).startswith("not by the kernel for memory")


def test_of_a_script_that_may_be_in_another_group_it_is_not_said_that_memory_sufficed(
    system: Path,
) -> None:
    version_2(system, oom=2, kills=1)
    witness = killed_jobs.MemoryWitness(os.getpid())
    assert witness.script_words().startswith("not by the kernel for memory")
    (system / "proc/vmstat").write_text("oom_kill 5\n")
    assert witness.script_words().startswith("the kernel ended a process of this machine")
    version_2(system, oom=3, kills=2)
    assert "reached its limit of 4.00 GiB" in witness.script_words()


def test_version_1_and_a_container_that_sees_its_own_groups_only(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("8:pids:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    group = system / "sys/fs/cgroup/memory"
    group.mkdir()
    (group / "memory.stat").touch()
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.failcnt").write_text("3\n")
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert killed_jobs.kill_counts() == killed_jobs.KillCounts(group=1, limit=3, machine=4)
    assert killed_jobs.memory_limit() is None


def test_where_the_system_tells_nothing_nothing_is_claimed(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system / "proc/vmstat").unlink()
    assert killed_jobs.kill_counts() == killed_jobs.KillCounts(None, None, None)
    assert killed_jobs.MemoryWitness(1).killed_words() == "the system may have run out of memory"
    monkeypatch.undo()
    witness = killed_jobs.MemoryWitness(os.getpid())
    witness.sample()
    assert "the job held" in witness.killed_words()


def test_a_limit_of_its_own_is_named_and_refused_memory_known_by_what_is_said() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if (
        resource.RLIM_INFINITY not in before
        or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    ):
        pytest.skip("this process has a limit already")
    resource.setrlimit(resource.RLIMIT_DATA, (2**42, before[1]))
    try:
        words = killed_jobs.out_of_memory_words("MemoryError")
        assert "this process may have 4.00 TiB of data (ulimit -d): raise it" in words
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert "ulimit" not in killed_jobs.out_of_memory_words("MemoryError")
    refused = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    assert killed_jobs.is_out_of_memory(RuntimeError(refused))
    assert killed_jobs.is_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert not killed_jobs.is_out_of_memory(RuntimeError("CUDA out of memory"))


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces and /proc of Linux")
JOB = """
import sys, tempfile, multiprocessing.util
from pathlib import Path
from vitprof.home import temporary_prefix
from vitprof.jobs.killed_jobs import mark_multiprocessing
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


def gone_pid() -> int:
    """The id of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@contextmanager
def stopped(owner: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a job of that vitprof started, and that was stopped."""
    process = subprocess.Popen(["sleep", "1000"], env=os.environ | {killed_jobs.OWNER: owner})
    wait_until(lambda: psutil.Process(process.pid).name() == "sleep", "the program")
    process.send_signal(signal.SIGSTOP)
    # or ended at once: whatever starts a job on this machine clears orphans
    stopped_or_ended = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(
        lambda: psutil.Process(process.pid).status() in stopped_or_ended, "a stopped process"
    )
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_job_left_goes_when_it_is_gone_and_not_before(temporary: Path) -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert job.stdout is not None
    assert job.stdin is not None
    with job.stdin, job.stdout:
        assert job.stdout.readline() == b"ready\n"
        made = sorted(os.listdir(temporary))
        assert [name.split("-")[:2] for name in made] == [
            ["vitprof", what] for what in ("mp", "told", "watch")
        ]
        killed_jobs.clear_orphans()
        assert sorted(os.listdir(temporary)) == made
        job.kill()
        job.wait()
    killed_jobs.clear_orphans()
    assert os.listdir(temporary) == []


def test_what_is_not_ours_stays(temporary: Path) -> None:
    ended = gone_pid()
    elsewhere = (
        f"vitprof-watch-0-{ended}-abc"  # another container's, where the same number may be alive
    )
    names = [
        "pymp-of-another-program",
        "vitprof-notes",
        elsewhere,
        f"{temporary_prefix('watch')}abc",
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
    killed_jobs.clear_orphans()
    assert set(os.listdir(temporary)) == kept


def test_a_stopped_process_that_lost_its_owner_is_ended_and_no_other(temporary: Path) -> None:
    with (
        stopped(f"{process_space()}-{gone_pid()}") as lost,
        stopped(killed_jobs.owner_mark()) as kept,
    ):
        killed_jobs.clear_orphans()
        assert gone([psutil.Process(lost.pid)])
        assert lost.wait() == -signal.SIGKILL
        assert kept.poll() is None
