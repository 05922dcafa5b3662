"""A store, or a file of the machine's lock, that does not answer: what the pages ask of the manager answers at once."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.jobs.test_manager import Gate, finished, gate, jobs, queued  # noqa: F401
from vitprof.errors import JobError
from vitprof.jobs import manager as manager_module
from vitprof.jobs import scheduling
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore

FAILS_AFTER_S = 30.0
"""How long a test waits for what answers at once; only where it fails."""


class Hanging:
    """Replaces a method by one that does not return until `answer` is called."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.entered = threading.Event()
        self._answers = threading.Event()
        self.hangs: Callable[..., bool] = lambda *_, **__: True
        method = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            if self.hangs(*args, **kwargs):
                self.entered.set()
                assert self._answers.wait(2 * FAILS_AFTER_S)
            return found

        patch.setattr(owner, name, call)

    def wait(self) -> None:
        assert self.entered.wait(FAILS_AFTER_S)

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch, jobs: JobManager) -> Iterator[Any]:  # noqa: F811
    """Makes a method hang until the test is over."""
    made: list[Hanging] = []

    def hang(owner: Any, name: str) -> Hanging:
        made.append(Hanging(monkeypatch, owner, name))
        return made[-1]

    yield hang
    for each in made:
        each.answer()


def answers(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises, in a thread of its own: one that hangs fails the test."""
    found: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            found.append(call())
        except JobError as error:
            found.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="a page", daemon=True).start()
    assert done.wait(FAILS_AFTER_S), "it does not answer"
    return found[0]


def ask_all(jobs: JobManager, run_id: int) -> None:  # noqa: F811
    """What pages ask of a run that is queued or runs."""
    assert answers(lambda: jobs.may_stop(run_id))
    assert answers(lambda: jobs.why_away(run_id)) == ""
    assert answers(lambda: jobs.wait(run_id, 0)) is False
    answers(lambda: jobs.run_now(run_id))


@pytest.mark.parametrize(
    ("owner", "name"), [(RunStore, "live_runs"), (scheduling.MachineLock, "acquire")]
)
def test_a_queued_run_is_stopped_while_its_turn_is_asked_for(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
) -> None:
    monkeypatch.setattr(manager_module, "STOPPED_WITHIN_S", FAILS_AFTER_S)
    asked = hangs(owner, name)
    (first,) = queued(jobs, "a")
    asked.wait()
    ask_all(jobs, first)
    answers(lambda: jobs.stop(first))
    assert jobs.store.run(first).status == "stopped"
    assert not jobs.may_stop(first)
    (second,) = answers(lambda: queued(jobs, "b"))
    gate.open.set()
    asked.answer()
    assert finished(jobs, second).status == "done"
    assert gate.begun == ["b"], "the place of the one that was stopped is free"
    assert jobs.store.run(first).message == ""
    assert scheduling.holders() == []


def test_others_are_stopped_while_a_run_is_added(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
) -> None:
    running, waiting = queued(jobs, "a", "b")
    added = hangs(RunStore, "add_run")
    adds = threading.Thread(target=queued, args=(jobs, "c"))
    adds.start()
    added.wait()
    ask_all(jobs, running)
    answers(lambda: jobs.stop(waiting))
    answers(lambda: jobs.stop(running))
    assert finished(jobs, running).status == finished(jobs, waiting).status == "stopped"
    gate.open.set()
    added.answer()
    adds.join(FAILS_AFTER_S)
    assert finished(jobs, waiting + 1).status == "done"


def test_runs_that_are_added_at_once_go_in_the_order_of_their_numbers(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is in the store, and comes into the queue last: the other one waits for it, and not forever."""
    monkeypatch.setattr(manager_module, "QUEUE_CHECK_S", 0.01)
    gate.open.set()
    added = hangs(RunStore, "add_run")
    added.hangs = lambda _store, asked_for, **_: asked_for.name == "a"
    adds = threading.Thread(target=queued, args=(jobs, "a"))
    adds.start()
    added.wait()
    (second,) = queued(jobs, "b")
    added.answer()
    adds.join(FAILS_AFTER_S)
    assert [finished(jobs, i).status for i in (second - 1, second)] == ["done", "done"]
    assert gate.begun == ["a", "b"]


def test_a_run_that_is_added_while_the_manager_closes_is_stopped(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
) -> None:
    added = hangs(RunStore, "add_run")
    found: list[Any] = []
    adds = threading.Thread(target=lambda: found.append(answers(lambda: queued(jobs, "a"))))
    adds.start()
    added.wait()
    answers(jobs.shutdown)
    added.answer()
    adds.join(FAILS_AFTER_S)
    assert "shutting down" in str(found[0])
    (run,) = jobs.store.runs()
    assert (run.status, run.error, gate.begun) == ("stopped", "stopped before it began", [])


def test_a_stop_does_not_wait_long_for_a_store_that_takes_nothing(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager_module, "STOPPED_WITHIN_S", 0.0)
    running, waiting = queued(jobs, "a", "b")
    writes = hangs(RunStore, "record")
    answers(lambda: jobs.stop(waiting))
    assert not answers(lambda: jobs.may_stop(waiting))
    writes.answer()
    gate.open.set()
    assert [finished(jobs, i).status for i in (running, waiting)] == ["done", "stopped"]
    assert gate.begun == ["a"]


def test_closing_does_not_wait_for_a_thread_that_the_store_holds_up(
    jobs: JobManager,  # noqa: F811
    gate: Gate,  # noqa: F811
    hangs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.0)
    asked = hangs(RunStore, "live_runs")
    (first,) = queued(jobs, "a")
    asked.wait()
    answers(jobs.shutdown)
    assert not jobs.may_stop(first)
    assert gate.begun == []
