"""Work in a thread for all sessions of a server. Without Streamlit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from vitprof.errors import JobError
from vitprof.experiments.trials import OnProgress, Progress, Stop
from vitprof.jobs import users
from vitprof.ui.resources import BackgroundTask

Task = BackgroundTask[str]
SEVEN = Progress("", 7, 10, 0.7)


@pytest.fixture
def task() -> Iterator[Task]:
    made: Task = BackgroundTask("vitprof-test")
    yield made
    made.close()


class Held:
    """Work that reports its progress and goes on until it is let go or stopped."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, report: OnProgress, stopped: Stop) -> str:
        report(SEVEN)
        self.begun.set()
        while not self.let_go.wait(0.01) and not stopped():
            pass
        return "stopped early" if stopped() else "all of it"


def test_progress_then_the_result(task: Task) -> None:
    work = Held()
    assert (task.running, task.progress, task.result, task.error) == (False, None, None, "")
    task.start(work)
    work.begun.wait()
    assert (task.running, task.progress, task.result) == (True, SEVEN, None)
    work.let_go.set()
    task.wait()
    assert (task.running, task.result, task.error) == (False, "all of it", "")


def test_others_of_those_who_log_in_cannot_stop_it(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    person, work = "ada", Held()
    monkeypatch.setattr(users, "_source", [lambda: person])
    task.start(work)
    work.begun.wait()
    person = "bob"
    with pytest.raises(JobError, match="it was started by ada; others cannot stop it"):
        task.stop()
    assert task.running
    person = "ada"
    task.stop()
    task.wait()
    assert task.result == "stopped early"


def test_a_second_start_changes_nothing(task: Task) -> None:
    first, second = Held(), Held()
    task.start(first)
    first.begun.wait()
    task.start(second)
    first.let_go.set()
    task.wait()
    assert task.result == "all of it"
    assert not second.begun.is_set()


def test_stop_gives_what_was_done_until_then_and_the_next_one_is_not_stopped(task: Task) -> None:
    work = Held()
    task.start(work)
    task.stop()
    task.wait()
    assert task.result == "stopped early"
    work.let_go.set()
    task.start(work)
    task.wait()
    assert task.result == "all of it"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (JobError("no process\ncould be started"), "no process could be started"),
        (ZeroDivisionError("a bug\nof two lines"), "ZeroDivisionError: a bug"),
    ],
)
def test_an_error_is_one_line_and_gone_with_the_next_start(task: Task, error: Exception, said: str) -> None:
    def fail(*args: object) -> str:
        raise error

    task.start(fail)
    task.wait()
    assert (task.error, task.result) == (said, None)
    task.start(lambda tell, stopped: "fine")
    task.wait()
    assert (task.error, task.result) == ("", "fine")


def test_close_waits_for_the_end(task: Task) -> None:
    task.start(Held())
    task.close()
    assert not task.running
    assert task.result == "stopped early"


def test_the_end_of_the_program_stops_it_and_waits() -> None:
    code = """
import threading
from vitprof.jobs import users
from vitprof.ui.resources import BackgroundTask
pause = threading.Event()
def work(tell, stopped):
    while not stopped():
        pause.wait(0.01)
    print("put away")
BackgroundTask("vitprof-test").start(work)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "put away\n"
