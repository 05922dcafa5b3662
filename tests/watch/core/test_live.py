"""Steps that are given out while events arrive are those of the whole log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watch.core.test_logs import TRUTHS, recorded
from tests.watch.core.written import CHECK, HELPER, OTHER, TRAIN, Script
from vitprof.watch.core.live import CONTEXT, FOLLOWING, MOST_KEPT, SETTLED_AFTER_S, LiveSteps
from vitprof.watch.core.log import EventLog, row_of
from vitprof.watch.core.loop import Steps, find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import Kind


def shown(found: Steps) -> list[tuple[int, float, float, float]]:
    return [
        (step.epoch, step.samples, round(step.end_s, 6), round(step.wait_s, 6))
        for step in found.steps
    ]


def whole(log: EventLog) -> Steps:
    training = find_training(log)
    return Steps() if training is None else find_steps(training)


def live(log: EventLog, size: int) -> Steps:
    """Adds so many events at a time, and settles after each part."""
    steps = LiveSteps()
    found = Steps()
    steps.add(log.descriptions.values(), [])
    for begin in range(0, len(log.events), size):
        part = log.events[begin : begin + size]
        steps.add([], map(row_of, part))
        new = steps.settle(part[-1].at_s)
        found.steps += new.steps
        found.evaluations += new.evaluations
    new = steps.settle(log.events[-1].at_s, finished=True)
    found.steps += new.steps
    found.evaluations += new.evaluations
    return found


@pytest.mark.parametrize("name", sorted(TRUTHS))
@pytest.mark.parametrize("size", [23, 150])
def test_a_recorded_script_has_the_same_steps(name: str, size: int) -> None:
    log = recorded(name)
    assert shown(live(log, size)) == shown(whole(log))


AHEAD = 3
"""A thread that fetches, and does not train."""
WORDS = ("train", "check", "exhaust", "itself", "zip", "accumulate", "again", "helped", "ahead")


@given(st.lists(st.sampled_from(WORDS), max_size=40), st.integers(1, 60))
def test_any_script_has_the_same_steps(words: list[str], size: int) -> None:
    script = Script()
    script.train(6)
    for word in words:
        if word == "check":
            script.fetch(CHECK, quiet=True)
            continue
        if word == "itself":
            script.begin(TRAIN)
            for _ in range(3):
                script.fetch(TRAIN, quiet=True)
            script.begin(TRAIN)
            continue
        script.fetch(TRAIN)
        if word == "zip":
            script.begin(OTHER)
            script.fetch(OTHER)
        script.backward()
        if word == "helped":
            script.update(thread=HELPER)
            # What two threads do is never at the very same time.
            script.now_s += 1e-4
        elif word == "ahead":
            script.fetch(OTHER, thread=AHEAD)
        elif word != "accumulate":
            script.update()
        if word == "again":
            script.update()
        if word == "exhaust":
            script.exhaust(TRAIN)
    found = live(script.log, size)
    expected = whole(script.log)
    assert shown(found) == shown(expected)
    assert found.evaluations == expected.evaluations


def test_a_long_loop_keeps_few_events_and_goes_on_counting_its_epochs() -> None:
    script = Script(wait_s=1e-4, work_s=1e-5)
    steps = LiveSteps()
    steps.add(script.log.descriptions.values(), [])
    found = Steps()
    for _ in range(30):
        sent = len(script.log.events)
        script.train(40)
        script.exhaust(TRAIN)
        steps.add([], map(row_of, script.log.events[sent:]))
        found.steps += steps.settle(script.now_s).steps
    found.steps += steps.settle(script.now_s, finished=True).steps
    assert [step.epoch for step in found.steps] == [epoch for epoch in range(30) for _ in range(40)]
    assert steps.n_kept <= 10


def test_a_loop_without_an_optimizer_goes_on_training_once_that_was_seen() -> None:
    script = Script(wait_s=1e-4, work_s=1e-5)
    steps = LiveSteps()
    steps.add(script.log.descriptions.values(), [])
    n = 0
    for part in range(6):
        sent = len(script.log.events)
        for _ in range(CONTEXT // 4):
            script.fetch(TRAIN)
            script.backward()
        if part == 0:
            script.work(Kind.CHANGED)
        steps.add([], map(row_of, script.log.events[sent:]))
        n += len(steps.settle(script.now_s).steps)
    n += len(steps.settle(script.now_s, finished=True).steps)
    assert n == 6 * (CONTEXT // 4)


def test_a_step_is_not_given_out_before_what_follows_is_known() -> None:
    script = Script()
    steps = LiveSteps()
    script.train(6)
    steps.add(script.log.descriptions.values(), [])
    steps.add([], map(row_of, script.log.events))
    assert len(steps.settle(script.now_s).steps) == 6 - FOLLOWING
    assert len(steps.settle(script.now_s + SETTLED_AFTER_S + 1).steps) == FOLLOWING - 1
    assert len(steps.settle(script.now_s, finished=True).steps) == 1


@pytest.mark.parametrize("n_before", [0, 1, 6])
def test_a_step_that_takes_longer_than_a_second_is_given_out_once(n_before: int) -> None:
    """Its work may go on, however long nothing is seen of it."""
    script = Script()
    steps = LiveSteps()
    steps.add(script.log.descriptions.values(), [])
    script.train(n_before)
    script.fetch(TRAIN)
    script.backward()
    steps.add([], map(row_of, script.log.events))
    sent = len(script.log.events)
    script.now_s += SETTLED_AFTER_S + 1
    found = steps.settle(script.now_s)
    script.update()
    script.train(4)
    steps.add([], map(row_of, script.log.events[sent:]))
    found.steps += steps.settle(script.now_s, finished=True).steps
    assert shown(found) == shown(whole(script.log))


def test_without_training_there_is_nothing() -> None:
    script = Script()
    for _ in range(5):
        script.fetch(CHECK, quiet=True)
    steps = LiveSteps()
    steps.add([], map(row_of, script.log.events))
    assert steps.settle(script.now_s, finished=True) == Steps()


def test_what_does_not_train_keeps_few_of_its_batches() -> None:
    script = Script()
    steps = LiveSteps()
    for _ in range(MOST_KEPT + 100):
        script.fetch(CHECK, quiet=True)
    steps.add([], map(row_of, script.log.events))
    steps.settle(script.now_s)
    assert steps.n_kept == MOST_KEPT


def test_a_long_evaluation_keeps_few_of_its_batches_and_has_its_whole_time() -> None:
    script = Script()
    steps = LiveSteps()
    steps.add(script.log.descriptions.values(), [])
    found = Steps()
    sent = 0
    script.train(6)
    for _ in range(6):
        for _ in range(MOST_KEPT // 2):
            script.fetch(CHECK, quiet=True)
        steps.add([], map(row_of, script.log.events[sent:]))
        sent = len(script.log.events)
        found.steps += steps.settle(script.now_s).steps
        assert steps.n_kept < MOST_KEPT + 20
    script.train(3)
    steps.add([], map(row_of, script.log.events[sent:]))
    rest = steps.settle(script.now_s, finished=True)
    expected = whole(script.log)
    assert shown(Steps(found.steps + rest.steps)) == shown(expected)
    assert rest.evaluations == expected.evaluations


def test_events_that_were_dropped_are_known() -> None:
    script = Script()
    script.train(4)
    steps = LiveSteps()
    steps.add([], map(row_of, script.log.events))
    assert not steps.why_incomplete
    steps.add([], map(row_of, [script.log.events[0]._replace(kind=Kind.DROPPED)]))
    assert steps.why_incomplete == "events were dropped, as nothing read them"


def test_a_habit_of_long_ago_is_forgotten() -> None:
    """A loader that fed another phase of the training evaluates now."""
    script = Script()
    script.train(3, OTHER)
    script.train(CONTEXT + 50)
    steps = LiveSteps()
    steps.add(script.log.descriptions.values(), [])
    steps.add([], map(row_of, script.log.events))
    sent = len(script.log.events)
    assert len(steps.settle(script.now_s).steps) == CONTEXT + 50 + 3 - FOLLOWING
    for _ in range(3):
        script.fetch(OTHER, quiet=True)
        script.train(4)
    steps.add([], map(row_of, script.log.events[sent:]))
    assert len(steps.settle(script.now_s, finished=True).evaluations) == 3
