"""Processes that a script leaves behind, without its session, its environment, and a living parent."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from vitprof.jobs import left_behind
from vitprof.jobs.killed_jobs import OWNER, owner_mark
from vitprof.jobs.left_behind import LeftBehind

DAEMON = """
import os, sys
reading, writing = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.close(writing)
os.read(reading, 1)  # until it has begun
os.waitpid(middle, 0)  # a process closes its files before its children get another parent
"""
"""A script that starts a daemon, prints its process id, and ends."""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has subreapers"
)


@pytest.fixture
def left() -> Iterator[LeftBehind]:
    made = LeftBehind("VITPROF_NONE", "such")
    yield made
    made.close()
    made.close()
    assert left_behind._subreaper.n_scripts == 0


def daemon() -> psutil.Process:
    """Starts a script to its end; returns the daemon that it leaves."""
    ended = subprocess.run(
        [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=True, start_new_session=True
    )
    return psutil.Process(int(ended.stdout))


def test_a_daemon_that_kept_nothing_of_its_script_ends(left: LeftBehind) -> None:
    process = daemon()
    assert process.ppid() == os.getpid()
    assert process.environ() == {}
    assert left.end() == []
    assert not process.is_running()
    assert not psutil.pid_exists(process.pid), "nothing of it is left to be waited for"


def test_what_this_program_has_started_goes_on(left: LeftBehind) -> None:
    of_a_job = {**os.environ, OWNER: owner_mark()}
    own = [
        subprocess.Popen(["sleep", "600"]),
        subprocess.Popen(["sleep", "600"], env=of_a_job, start_new_session=True),
        subprocess.Popen(["false"], start_new_session=True),
    ]
    left_behind.keep(own[-1].pid)
    try:
        assert left.end() == []
        assert [process.poll() for process in own[:2]] == [None, None]
        assert own[-1].wait() == 1, "nobody else has waited for it"
        other = LeftBehind("VITPROF_NONE", "such")
        process = daemon()
        # it cannot be told which of two scripts it belongs to
        assert left.end() == []
        assert process.is_running()
        other.close()
        assert left.end() == []
        assert not process.is_running()
    finally:
        for each in own:
            each.kill()
            each.wait()


def test_a_child_from_before_is_no_scripts() -> None:
    before = subprocess.Popen(["sleep", "600"], start_new_session=True)
    left = LeftBehind("VITPROF_NONE", "such")
    assert left.end() == []
    assert before.poll() is None
    left.close()
    before.kill()
    before.wait()


def test_what_cannot_be_ended_is_named(left: LeftBehind, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(left_behind, "END_S", 0.0)
    process = daemon()
    with monkeypatch.context() as of_another_user:
        of_another_user.setattr(psutil.Process, "kill", refuse)
        assert left.end() == [f"process {process.pid} (sleep)"]
    while left.end():
        pass
    assert not process.is_running()


def test_without_subreapers_those_with_the_scripts_environment_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(left_behind._Subreaper, "_set", lambda self, on: False)
    left = LeftBehind("VITPROF_NONE", "such")
    environment = {"VITPROF_NONE": "such", "PATH": os.environ["PATH"]}
    process = subprocess.Popen(["sleep", "600"], start_new_session=True, env=environment)
    assert left.end() == []
    assert process.wait() == -9
    left.close()
