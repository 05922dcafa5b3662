"""What compute is made of, on events that are written by hand: the times are told, nobody measures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watch.core.written import ANOTHER_OPTIMIZER, OTHER, TRAIN, Script
from vitprof.watch.core import compute_parts
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.compute_parts import ComputeParts
from vitprof.watch.core.loop import Step, find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import Kind

MS = 1e-3
NAN = math.nan
FORWARD, BACKWARD, CLIP, UPDATE, LOG = 4 * MS, 5 * MS, 0.5 * MS, 2 * MS, 1 * MS


def steps_of(script: Script) -> list[Step]:
    """Returns the steps of a script, between steps that are as most are: its habits are known by them."""
    training = find_training(script.log)
    assert training is not None
    return find_steps(training).steps


def parts_of(script: Script, number: int) -> list[float]:
    """Returns the milliseconds of forward, backward and optimizer of a step."""
    parts = compute_parts.compute_parts(steps_of(script)[number])
    return [round(seconds / MS, 6) for seconds in parts]


def usual(script: Script, n: int = 3) -> None:
    """Does steps as most scripts do, with gradients that are clipped, and with a line of a log."""
    for _ in range(n):
        script.fetch(TRAIN)
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.passes(CLIP)
        script.updates(UPDATE)
        script.passes(LOG)


def test_forward_backward_and_optimizer_of_a_step() -> None:
    script = Script()
    usual(script)
    assert parts_of(script, 1) == [4.0, 5.5, 2.0]
    columns = columns_of(steps_of(script))
    rest_s = columns["compute_s"] - sum(columns[name] for name in ComputeParts._fields)
    # the last one ends with its last work
    assert rest_s == pytest.approx([LOG, LOG, 0.0])


def test_a_step_without_an_update_has_no_time_of_an_optimizer() -> None:
    """As where gradients are accumulated over batches, or where a scaler skips it."""
    script = Script()
    script.fetch(TRAIN)
    script.passes(FORWARD)
    script.differentiates(BACKWARD)
    script.passes(LOG)
    usual(script)
    assert parts_of(script, 0) == [4.0, 5.0, 0.0]


def test_forward_passes_between_the_passes_of_batches_that_were_fetched_at_once() -> None:
    script = Script()
    for _ in range(2):
        script.fetch(TRAIN)
        script.fetch(TRAIN)
        for _ in range(2):
            script.passes(FORWARD)
            script.differentiates(BACKWARD)
        script.updates(UPDATE)
        script.passes(LOG)
    assert parts_of(script, 0) == [8.0, 10.0, 2.0]


def test_two_models_that_are_updated_one_after_the_other() -> None:
    script = Script()
    usual(script)
    script.fetch(TRAIN)
    for optimizer in (11, ANOTHER_OPTIMIZER):
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.updates(UPDATE, optimizer)
    script.passes(LOG)
    usual(script)
    assert parts_of(script, 3) == [8.0, 10.0, 4.0]


def test_two_optimizers_of_one_pass() -> None:
    script = Script()
    script.fetch(TRAIN)
    script.passes(FORWARD)
    script.differentiates(BACKWARD)
    script.updates(UPDATE)
    script.passes(LOG)
    script.updates(UPDATE, ANOTHER_OPTIMIZER)
    script.exhaust(TRAIN)
    assert parts_of(script, 0) == [4.0, 5.0, 4.0]


def test_an_optimizer_that_calls_the_forward_and_the_backward_pass() -> None:
    """As Lightning has it."""
    script = Script()
    usual(script)
    script.fetch(TRAIN)
    script.passes(LOG)
    since_s = script.now_s
    script.passes(FORWARD)
    script.differentiates(BACKWARD)
    script.updates(UPDATE, since_s=since_s)
    script.passes(LOG)
    usual(script)
    assert parts_of(script, 3) == [5.0, 5.0, 2.0]


def test_what_an_optimizer_that_searches_does_cannot_be_told() -> None:
    """LBFGS calls its closure several times."""
    script = Script()
    script.fetch(TRAIN)
    since_s = script.now_s
    for _ in range(3):
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
    script.updates(UPDATE, since_s=since_s)
    script.exhaust(TRAIN)
    assert np.isnan(parts_of(script, 0)).all()


def test_optimizers_that_step_within_the_backward_pass() -> None:
    script = Script()
    for _ in range(2):
        script.fetch(TRAIN)
        script.passes(FORWARD)
        begun_s = script.begins_pass()
        for optimizer in (11, ANOTHER_OPTIMIZER):
            script.passes(1 * MS)
            script.updates(UPDATE, optimizer)
        script.passes(1 * MS)
        script.ends_pass(begun_s)
        script.passes(LOG)
    script.exhaust(TRAIN)
    assert parts_of(script, 0) == [4.0, 3.0, 4.0]


def test_the_wait_for_another_loader_in_the_middle_is_no_part() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.fetch(OTHER)
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.updates(UPDATE)
        script.passes(LOG)
    script.exhaust(TRAIN)
    first = steps_of(script)[0]
    assert len(first.fetches) == 2
    assert parts_of(script, 0) == [8.0, 10.0, 2.0]


def test_of_several_batches_all_are_there_as_the_forward_pass_begins() -> None:
    script = Script()
    for _ in range(2):
        script.fetch(TRAIN)
        script.passes(LOG)
        script.fetch(OTHER)
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.updates(UPDATE)
    script.exhaust(TRAIN)
    assert parts_of(script, 0) == [4.0, 5.0, 2.0]


def test_gradients_that_no_pass_was_seen_to_make() -> None:
    script = Script()
    usual(script)
    script.fetch(TRAIN)
    script.passes(FORWARD)
    script.updates(UPDATE)
    usual(script)
    assert parts_of(script, 3) == pytest.approx([NAN, NAN, 2.0], nan_ok=True)


def test_an_update_by_hand_was_not_seen() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        script.passes(FORWARD)
        script.differentiates(BACKWARD)
        script.work(Kind.CHANGED)
        script.passes(LOG)
    columns = columns_of(steps_of(script), optimizers_step=False)
    assert columns["forward_compute_s"][:3] == pytest.approx([FORWARD] * 3)
    assert columns["backward_compute_s"][:3] == pytest.approx([BACKWARD] * 3)
    assert np.isnan(columns["optimizer_compute_s"]).all()


def test_a_log_of_an_earlier_version_has_no_parts() -> None:
    """Neither where a pass ended nor where an update began was noted."""
    script = Script()
    script.train(3)
    script.exhaust(TRAIN)
    columns = columns_of(steps_of(script))
    for name in ComputeParts._fields:
        assert np.isnan(columns[name]).all()


def test_a_step_whose_wait_is_not_known_has_no_parts() -> None:
    step = Step(epoch=0, end_s=1.0, wait_is_known=False)
    assert np.isnan(compute_parts.compute_parts(step)).all()
    assert columns_of([])["forward_compute_s"].shape == (0,)


TIMES = st.lists(st.integers(0, 9), min_size=5, max_size=5)


@given(TIMES)
def test_the_short_way_and_the_general_rule_agree(times: list[int]) -> None:
    forward, backward, clip, update, log = times
    script = Script()
    script.fetch(TRAIN)
    script.passes(forward)
    script.differentiates(backward)
    script.passes(clip)
    script.updates(update)
    script.passes(log)
    script.exhaust(TRAIN)
    (step,) = steps_of(script)
    found = compute_parts.compute_parts(step)
    spans = compute_parts._spans(step, step.work)
    assert spans is not None
    assert found == pytest.approx((forward, backward + clip, update))
    assert found == pytest.approx(compute_parts._divide(step.fetches[0].received_s, spans))


@given(st.lists(st.sampled_from("fbuws"), max_size=12))
def test_parts_are_never_more_than_compute(words: list[str]) -> None:
    """Whatever a script does in a step, in any order."""
    script = Script()
    usual(script, 6)
    script.fetch(TRAIN)
    for word in words:
        script.passes(1 * MS)
        if word == "f":
            script.passes(FORWARD)
        elif word == "b":
            script.differentiates(BACKWARD)
        elif word == "u":
            script.updates(UPDATE)
        elif word == "w":
            script.fetch(OTHER)
        else:
            since_s = script.now_s
            script.passes(1 * MS)
            script.differentiates(BACKWARD)
            script.updates(UPDATE, since_s=since_s)
    usual(script, 6)
    columns = columns_of(steps_of(script))
    parts = np.array([columns[name] for name in ComputeParts._fields])
    assert not (parts < 0).any()
    known = np.isfinite(parts).all(axis=0) & np.isfinite(columns["compute_s"])
    assert (parts.sum(axis=0)[known] <= columns["compute_s"][known] + 1e-9).all()


def test_what_comes_between_two_epochs_is_a_gap_and_no_compute() -> None:
    script = Script()
    usual(script)
    script.exhaust(TRAIN)
    script.passes(0.500)
    usual(script)
    assert parts_of(script, 3) == [4.0, 5.5, 2.0]
    columns = columns_of(steps_of(script))
    assert columns["data_wait_s"][3] == pytest.approx(0.020)
    assert columns["gap_s"][3] == pytest.approx(0.520)
    assert columns["exposed_wait_s"][3] == pytest.approx(0.020)
    assert columns["compute_s"][3] == pytest.approx(columns["compute_s"][1])
