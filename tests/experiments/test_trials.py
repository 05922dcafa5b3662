"""Trials of real jobs, one after another: what comes next may depend on the one before, and how they end."""

from collections.abc import Iterator

import pytest

from tests.engine_fixtures import CHEAP, small_home, vitprof_threads, wait_until  # noqa: F401
from vitprof.config import RunConfig
from vitprof.errors import StoreAwayError
from vitprof.experiments.trials import Progress, Trial, run_trials
from vitprof.jobs.manager import JobManager

SHORT = RunConfig(
    **(CHEAP | {"device": "simulated:2,0", "steps": 6, "evaluate": False, "isolation": "thread"})
)
LONG = RunConfig(
    **(
        CHEAP
        | {"device": "simulated:200,0", "steps": 300, "evaluate": False, "isolation": "thread"}
    )
)
LIST = [Trial(LONG, role, f"the {role}") for role in ("first", "second")]
pytestmark = pytest.mark.usefixtures("small_home")


def ended(manager: JobManager) -> list[tuple[str, str]]:
    return [
        (run.role, run.status) for run in manager.store.runs(group_key="g:1", oldest_first=True)
    ]


def test_the_next_one_is_chosen_when_the_one_before_is_in_the_store(manager: JobManager) -> None:
    def rule() -> Iterator[Trial]:
        for number in range(3):
            assert ended(manager) == [(str(n), "done") for n in range(number)]
            yield Trial(SHORT, str(number), f"number {number}")

    shown: list[Progress] = []
    ran = [
        trial.role
        for trial, _ in run_trials(manager, rule(), "g:1", total=3, progress=shown.append)
    ]
    assert ran == ["0", "1", "2"]
    assert {(p.words, p.done, p.total) for p in shown} <= {(f"number {n}", n, 3) for n in range(3)}


def test_a_stop_ends_the_running_one_and_begins_no_other(manager: JobManager) -> None:
    assert [
        trial.role
        for trial, _ in run_trials(manager, LIST, "g:1", stop=lambda: bool(ended(manager)))
    ] == ["first"]
    assert ended(manager) == [("first", "stopped")]
    assert list(run_trials(manager, LIST, "g:1", stop=lambda: True)) == []


def test_one_that_is_cut_short_is_not_the_end(manager: JobManager) -> None:
    assert len(list(run_trials(manager, LIST, "g:1", watch=lambda trial, run_id: True))) == 2
    assert ended(manager) == [("first", "stopped"), ("second", "stopped")]


def test_an_interrupt_ends_the_running_one(manager: JobManager) -> None:
    def interrupted(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_trials(manager, LIST, "g:1", progress=interrupted))
    assert ended(manager) == [("first", "stopped")]


def test_a_stop_is_heard_while_the_store_is_unavailable(manager: JobManager) -> None:
    polls: list[int] = []

    def unavailable(progress: Progress) -> None:
        polls.append(1)
        raise StoreAwayError("locked", "locked")

    trials = run_trials(manager, LIST, "g:1", progress=unavailable, stop=lambda: len(polls) > 1)
    assert (len(list(trials)), ended(manager)) == (1, [("first", "stopped")])
