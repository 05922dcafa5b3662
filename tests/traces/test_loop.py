"""Where a step begins and ends, by the requests for batches and the steps of the optimizer."""

import math

import pytest

from tests.traces.written import AUTOGRAD, IN_THE_LOOP, WrittenTrace, trained_on_cpu
from vitprof.traces.loop import BY_ITERATIONS, BY_UPDATES, Loop, NoStepsError, find_loop

WAIT = 4.0
WORK = 6.0


def loop_of(trace: WrittenTrace) -> Loop:
    return find_loop(trace.collected().threads)


def begins_ms(loop: Loop) -> list[float]:
    return [1e3 * step.begin_s for step in loop.steps]


def test_a_step_begins_with_its_request_and_ends_with_the_update() -> None:
    loop = loop_of(trained_on_cpu(5, wait_ms=WAIT, work_ms=WORK, first=12))
    assert (len(loop.steps), loop.steps_by, loop.first_iteration) == (5, BY_UPDATES, 12)
    assert loop.loader_class == IN_THE_LOOP
    for number, step in enumerate(loop.steps):
        begin_s = number * 0.01002 + 1e-5
        assert step.begin_s == pytest.approx(begin_s)
        assert step.updated is not None
        assert step.updated.end_s == pytest.approx(begin_s + 0.01)
        assert step.epoch == 0
        assert step.n_batches == 1
    assert [step.next_begin_s for step in loop.steps[:-1]] == [s.begin_s for s in loop.steps[1:]]
    assert math.isinf(loop.steps[-1].next_begin_s)


def without_updates(*, first: bool) -> WrittenTrace:
    """A loop without an optimizer of PyTorch, which calls `prof.step()` first or last."""
    trace = WrittenTrace()
    for number in range(6):
        at_ms = number * 10.0
        trace.fetch(at_ms, WAIT)
        border_ms = WAIT + 0.01 if first else 9.99
        trace.iteration(number, at_ms + border_ms - 10.0, 10.0)
    return trace


@pytest.mark.parametrize("first", [True, False])
def test_wherever_the_profiler_is_told_of_a_step_the_steps_are_the_same(first: bool) -> None:
    """The wait for a batch lies at the end of the profiler's iteration, or at its beginning."""
    loop = loop_of(without_updates(first=first))
    assert loop.steps_by == BY_ITERATIONS
    # the work of the last batch came after the last call
    n_steps = 5 if first else 6
    since_ms = 5.99 if first else 0.01
    assert begins_ms(loop) == pytest.approx([since_ms + 10.0 * k for k in range(n_steps)])
    assert all(step.updated is None for step in loop.steps)


def test_an_update_of_several_optimizers_is_one() -> None:
    trace = WrittenTrace()
    for number in range(4):
        trace.fetch(number * 10.0, 1.0)
        trace.update(number * 10.0 + 3.0, 0.5)
        trace.update(number * 10.0 + 6.0, 0.5)
    loop = loop_of(trace)
    assert len(loop.steps) == 4
    updated = loop.steps[1].updated
    assert updated is not None
    assert (updated.start_s, updated.end_s) == pytest.approx((0.013, 0.0165))


@pytest.mark.parametrize("profiled", [True, False])
def test_accumulated_batches_are_steps_where_the_profiler_counts_them(profiled: bool) -> None:
    trace = WrittenTrace()
    for number in range(12):
        trace.fetch(number * 10.0, 1.0)
        if profiled:
            trace.iteration(number, number * 10.0 - 0.01, 10.0)
        if number % 4 == 3:
            trace.update(number * 10.0 + 8.0, 0.5)
    loop = loop_of(trace)
    n_fetches = [len(step.fetches) for step in loop.steps]
    assert n_fetches == ([1] * 12 if profiled else [4] * 3)
    assert [step.updated is not None for step in loop.steps].count(True) == 3
    assert loop.steps[0].next_begin_s == pytest.approx(0.01 if profiled else 0.04, abs=1e-4)


def test_two_loaders_that_are_zipped_are_asked_by_each_step() -> None:
    trace = WrittenTrace()
    for number in range(5):
        trace.iteration(number, number * 10.0 - 0.01, 10.0)
        trace.fetch(number * 10.0, 1.0)
        trace.fetch(number * 10.0 + 1.1, 2.0)
        trace.update(number * 10.0 + 8.0, 0.5)
    loop = loop_of(trace)
    assert [(len(step.fetches), step.n_batches) for step in loop.steps] == [(2, 2)] * 5
    assert [step.epoch for step in loop.steps] == [0] * 5


def epochs(*, evaluated: int, steps: int = 6, n: int = 3) -> WrittenTrace:
    """Epochs of so many steps, with so many batches of an evaluation after each."""
    trace = WrittenTrace()
    at_ms = 0.0
    for _ in range(n):
        for _ in range(steps):
            trace.fetch(at_ms, 1.0)
            trace.update(at_ms + 8.0, 0.5)
            at_ms += 10.0
        trace.fetch(at_ms, 0.2)  # there is no batch any more
        at_ms += 5.0
        for _ in range(evaluated + 1 if evaluated else 0):
            trace.fetch(at_ms, 1.0, IN_THE_LOOP)
            at_ms += 3.0
    return trace


def test_a_request_that_ends_an_epoch_is_part_of_the_wait_for_the_next_one() -> None:
    loop = loop_of(epochs(evaluated=0))
    assert [step.epoch for step in loop.steps] == [0] * 6 + [1] * 6 + [2] * 6
    first = loop.steps[6]
    assert (len(first.fetches), first.n_batches) == (2, 1)
    assert first.begin_s == pytest.approx(0.060)
    assert loop.steps[5].next_begin_s == pytest.approx(0.060)
    assert not loop.evaluations
    assert not any(step.after_evaluation for step in loop.steps)


def test_an_evaluation_is_none_of_the_training() -> None:
    loop = loop_of(epochs(evaluated=4))
    assert len(loop.steps) == 18
    first = loop.steps[6]
    assert (len(first.fetches), first.after_evaluation, first.epoch) == (1, True, 1)
    assert [evaluated.start_s for evaluated in loop.evaluations] == pytest.approx([0.060, 0.140])
    assert [evaluated.end_s for evaluated in loop.evaluations] == pytest.approx([0.080, 0.160])
    assert loop.loader_class != IN_THE_LOOP


def test_a_loop_that_fetches_a_batch_ahead() -> None:
    """As of Accelerate: the first step asks for two batches."""
    trace = WrittenTrace()
    trace.fetch(0.0, 1.0)
    for number in range(6):
        trace.fetch(number * 10.0 + 2.0, 1.0)
        trace.update(number * 10.0 + 8.0, 0.5)
    loop = loop_of(trace)
    assert begins_ms(loop) == pytest.approx([2.0 + 10.0 * k for k in range(6)])
    assert [step.epoch for step in loop.steps] == [0] * 6


def test_a_step_that_began_before_the_trace_is_left_out() -> None:
    trace = epochs(evaluated=0, n=1)
    del trace.events[0]
    loop = loop_of(trace)
    assert len(loop.steps) == 5
    assert loop.steps[0].begin_s == pytest.approx(0.002)


def test_the_order_of_events_in_the_file_is_no_matter() -> None:
    trace = epochs(evaluated=4)
    assert loop_of(trace.shuffled()) == loop_of(trace)


def test_other_threads_that_train_or_fetch_are_noticed() -> None:
    trace = epochs(evaluated=0)
    for number in range(3):
        trace.update(number * 20.0, 1.0, thread=AUTOGRAD)
    assert loop_of(trace).others_train
    fetching = WrittenTrace()
    for number in range(5):
        fetching.fetch(number * 10.0, 1.0, thread=AUTOGRAD)
        fetching.update(number * 10.0 + 5.0, 1.0)
    loop = loop_of(fetching)
    assert (loop.fetched_elsewhere, loop.loader_class, loop.others_train) == (True, "", False)
    assert len(loop.steps) == 5


@pytest.mark.parametrize("profiled", [True, False])
def test_without_a_dataloader_there_are_steps_and_no_waits(profiled: bool) -> None:
    trace = WrittenTrace()
    for number in range(5):
        if profiled:
            trace.iteration(number, number * 10.0, 9.99)
        trace.update(number * 10.0 + 5.0, 1.0)
    loop = loop_of(trace)
    assert [len(step.fetches) for step in loop.steps] == [0] * 5
    assert (loop.loader_class, loop.fetched_elsewhere) == ("", False)


def test_a_trace_without_steps_is_none_of_a_training() -> None:
    trace = WrittenTrace()
    trace.fetch(0.0, 1.0)
    trace.noise(2.0)
    with pytest.raises(NoStepsError, match=r"call prof.step\(\) in the loop"):
        loop_of(trace)
    with pytest.raises(NoStepsError):
        loop_of(WrittenTrace())


def test_a_trace_whose_profiler_was_told_of_no_step_has_none() -> None:
    """All of it is then the profiler's first iteration."""
    trace = WrittenTrace()
    trace.iteration(0, 0.0, 100.0)
    for number in range(9):
        trace.fetch(number * 10.0, 1.0)
    with pytest.raises(NoStepsError):
        loop_of(trace)
    for number in range(9):
        trace.update(number * 10.0 + 5.0, 1.0)
    loop = loop_of(trace)
    assert (len(loop.steps), loop.first_iteration) == (9, 0)
