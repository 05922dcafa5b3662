"""Recorded scripts of many shapes, replayed: the core finds the steps and the waits that each script's
own clock measured while it ran (`tests.watch.core.record`)."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shares import check_steps
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.log import EventLog
from vitprof.watch.core.loop import Steps, find_steps
from vitprof.watch.core.training import Training, find_training
from vitprof.watch.event_log import read_event_log
from vitprof.watch.events import Kind

LOGS = Path(__file__).parent / "logs"
TRUTHS: dict[str, dict[str, Any]] = json.loads((LOGS / "truths.json").read_text())
AROUND_A_CALL_S = 1e-3
"""What a script does around `next()` by its own clock, which the hooks do not see: generators, the
start of an iteration."""
AROUND_NEXT_S = 20e-6
"""The same where `next()` is all there is: PyTorch's own iterator, and the hooks themselves."""
AROUND_WORKERS_S = 3e-3
"""The same of an iteration's first batch, where workers were forked for it: then the script's own pages
are copied as it writes to them."""
POINTS = 0.02
"""The most that a share of the time may be off, as in `benchmarks.watch_matrix`."""


def with_a(fact: str) -> list[str]:
    """Returns the logs whose truth says this."""
    return sorted(name for name, truth in TRUTHS.items() if truth.get(fact))


@pytest.fixture(params=with_a("steps"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@functools.cache
def recorded(name: str) -> EventLog:
    """Returns a recorded log; nobody changes it."""
    return read_event_log(LOGS / f"{name}.jsonl")


@functools.cache
def trained(name: str) -> tuple[Training, Steps]:
    training = find_training(recorded(name))
    assert training is not None
    return training, find_steps(training)


@pytest.fixture
def training(name: str) -> Training:
    return trained(name)[0]


@pytest.fixture
def steps(name: str) -> Steps:
    return trained(name)[1]


def is_known(steps: Steps) -> bool:
    """Returns whether the core says of all steps for how long they waited."""
    return all(step.wait_is_known for step in steps.steps)


def test_each_log_has_its_truth() -> None:
    assert {path.stem for path in LOGS.glob("*.jsonl")} == set(TRUTHS)


def test_nothing_trains_in_a_script_that_evaluates() -> None:
    assert find_training(recorded("nobody-trains")) is None


def test_steps_and_epochs_are_counted(name: str, steps: Steps, training: Training) -> None:
    truth = TRUTHS[name]
    assert len(steps.steps) == truth["steps"]
    if "epochs" in truth:
        assert {step.epoch for step in steps.steps} == set(range(truth["epochs"]))
    assert len(training.others) == truth.get("others", 0)


@pytest.mark.parametrize("name", with_a("waits_s"))
def test_a_step_waits_for_what_the_script_waited_for(name: str, steps: Steps) -> None:
    # The first one has the iteration's beginning, too; some scripts time the first epoch alone.
    expected = TRUTHS[name]["waits_s"][1:]
    for step, expected_s in zip(steps.steps[1:], expected, strict=False):
        if not step.wait_is_known:
            continue
        begins_with_workers = step.fetches[-1].first and not math.isnan(step.fetches[-1].n_ready)
        around_s = AROUND_WORKERS_S if begins_with_workers else AROUND_A_CALL_S
        assert step.wait_s == pytest.approx(expected_s, abs=around_s)


@pytest.mark.parametrize("name", with_a("wait_s"))
def test_all_steps_wait_as_long_as_the_script_waited(name: str, steps: Steps) -> None:
    truth = TRUTHS[name]
    around_all_s = len(steps.steps) * truth.get("around_next_s", AROUND_NEXT_S)
    waited_s = sum(step.wait_s for step in steps.steps)
    assert waited_s == pytest.approx(truth["wait_s"], abs=around_all_s)


@pytest.mark.parametrize("name", with_a("wait_frac"))
def test_the_share_of_waiting_is_that_of_the_scripts_own_clock(name: str, steps: Steps) -> None:
    truth = TRUTHS[name]
    if not is_known(steps):
        assert truth["unknown_waits"]
        return
    columns = columns_of(steps.steps)
    timed = np.zeros(truth["steps"], dtype=bool)
    for begin, end in truth.get("timed", [[1, truth["steps"]]]):
        timed[begin:end] = True
    share = columns["data_wait_s"][timed].sum() / columns["step_s"][timed].sum()
    assert share == pytest.approx(truth["wait_frac"], abs=POINTS)


@pytest.mark.parametrize("name", with_a("samples"))
def test_each_step_has_the_batch_of_training(name: str, steps: Steps) -> None:
    assert {step.samples for step in steps.steps} == {TRUTHS[name]["samples"]}


@pytest.mark.parametrize("name", [name for name in TRUTHS if "checked" in TRUTHS[name]])
def test_all_loaders_train_that_are_not_there_to_evaluate(
    name: str, training: Training, steps: Steps
) -> None:
    log = recorded(name)
    if not is_known(steps):
        return
    gave = {
        log.loader_of(event.object)
        for event in log.events
        if event.kind is Kind.RECEIVED and event.thread == training.thread
    }
    loaders = {number for number in training.feeding if log.descriptions[number].kind == "loader"}
    assert loaders == gave - set(TRUTHS[name]["checked"])


def test_what_is_no_part_of_training_is_in_no_step(name: str, steps: Steps) -> None:
    truth = TRUTHS[name]
    if "evaluations" in truth:
        assert len(steps.evaluations) == truth["evaluations"]
    if "evaluated_s" in truth:
        # the last evaluation ends with its last batch, the script's clock after the work on it
        took_s = sum(each.end_s - each.begin_s for each in steps.evaluations)
        assert took_s == pytest.approx(truth["evaluated_s"], rel=0.1)


def test_a_wait_that_was_not_seen_is_not_known(name: str, steps: Steps) -> None:
    unknown = [step for step in steps.steps if not step.wait_is_known]
    assert len(unknown) == TRUTHS[name].get("unknown_waits", 0)
    assert np.isnan(columns_of(unknown)["data_wait_s"]).all()


def test_steps_follow_each_other_without_a_gap(name: str, steps: Steps) -> None:
    """The times of all steps and evaluations add up to the time of the loop."""
    columns = columns_of(steps.steps)
    check_steps(columns)
    ends = columns["t_start_s"] + columns["data_wait_s"] + columns["compute_s"]
    known = ~np.isnan(ends)
    assert (np.diff(ends[known]) > 0).all()
    waits = columns["data_wait_s"][1:]
    known = ~np.isnan(waits)
    assert (waits[known] >= 0).all()
    apart = columns["gap_s"][1:][known] - waits[known]
    same_epoch = np.diff(columns["epoch"])[known] == 0
    no_iteration_ends = ~np.array([step.n_of_last_epoch > 0 for step in steps.steps[1:]])[known]
    assert apart[same_epoch & no_iteration_ends] == pytest.approx(0.0, abs=1e-9)
    # as an epoch ends, or after an error, the script may do something else
    assert (apart > -1e-9).all()


@pytest.mark.parametrize("name", with_a("step_s"))
def test_the_durations_are_those_of_the_scripts_own_clock(name: str, steps: Steps) -> None:
    expected = np.array(TRUTHS[name]["step_s"])[1:]
    found = columns_of(steps.steps)["step_s"][1:]
    # the last one ends with the optimizer's step, the script's clock after a little more
    assert found[:-1] == pytest.approx(expected[:-1], rel=0.15, abs=AROUND_A_CALL_S)
