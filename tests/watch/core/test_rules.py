"""Each rule of the core by itself, on events that are written by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shares import check_steps
from tests.watch.core.written import (
    ANOTHER_OPTIMIZER,
    CHECK,
    HELPER,
    MAIN,
    OPTIMIZER,
    OTHER,
    SAMPLES,
    TRAIN,
    Script,
)
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.log import EventLog
from vitprof.watch.core.loop import Step, Steps, find_steps
from vitprof.watch.core.training import Training, find_training
from vitprof.watch.events import Description, Kind


def training_of(script: Script) -> Training:
    found = find_training(script.log)
    assert found is not None
    return found


def steps_of(script: Script) -> Steps:
    return find_steps(training_of(script))


def shown(step: Step) -> tuple[float, float]:
    """Returns the samples of a step and the milliseconds of its wait."""
    return step.samples, round(1e3 * step.wait_s, 6)


def test_a_step_is_a_batch_and_the_work_on_it() -> None:
    script = Script()
    script.train(3)
    script.exhaust(TRAIN)
    assert [shown(step) for step in steps_of(script).steps] == 3 * [(SAMPLES, 10.0)]


def test_a_step_ends_as_the_next_batch_is_requested_and_the_last_one_with_its_work() -> None:
    script = Script()
    script.train(2)
    first, last = steps_of(script).steps
    assert first.end_s == last.fetches[0].requested_s
    assert last.end_s == script.now_s


def test_an_iteration_that_is_over_ends_a_step_and_its_wait_is_the_next_epochs() -> None:
    script = Script()
    script.train(2)
    script.exhaust(TRAIN)
    script.train(2)
    steps = steps_of(script).steps
    assert [step.epoch for step in steps] == [0, 0, 1, 1]
    assert [shown(step)[1] for step in steps] == [10.0, 10.0, 20.0, 10.0]


def test_a_batch_that_is_fetched_ahead_is_waited_for_by_the_step_that_follows() -> None:
    script = Script()
    script.fetch(TRAIN)
    for _ in range(3):
        script.fetch(TRAIN)
        script.backward()
        script.update()
    script.exhaust(TRAIN)
    script.backward()
    script.update()
    steps = steps_of(script).steps
    assert [step.samples for step in steps] == [2 * SAMPLES, SAMPLES, SAMPLES, 0.0]
    assert sum(step.wait_s for step in steps) == pytest.approx(0.050)


def test_batches_that_are_fetched_at_once_for_one_update_are_one_step() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        script.fetch(TRAIN)
        script.backward()
        script.backward()
        script.update()
    assert [shown(step) for step in steps_of(script).steps] == 4 * [(2 * SAMPLES, 20.0)]


def test_gradients_that_are_accumulated_batch_by_batch_are_a_step_each() -> None:
    script = Script()
    for _ in range(3):
        script.fetch(TRAIN)
        script.backward()
        script.fetch(TRAIN)
        script.backward()
        script.update()
    assert len(steps_of(script).steps) == 6


def test_two_optimizers_that_step_in_turn_make_no_two_steps_of_a_batch() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        script.backward()
        script.update(ANOTHER_OPTIMIZER)
        script.backward()
        script.update()
    assert len(steps_of(script).steps) == 4


def test_an_optimizer_for_each_task_is_one_training() -> None:
    """As in federated learning: the loader and the optimizer are another task's each time."""
    script = Script()
    for task in range(4):
        for _ in range(3):
            script.fetch(TRAIN)
            script.backward()
            script.update(OPTIMIZER + task)
    assert [shown(step) for step in steps_of(script).steps] == 12 * [(SAMPLES, 10.0)]


@pytest.mark.parametrize("quiet", [True, False])
def test_batches_on_which_nothing_is_updated_evaluate(quiet: bool) -> None:
    script = Script()
    for _ in range(2):
        script.train(4)
        for _ in range(3):
            script.fetch(CHECK, quiet=quiet)
    script.train()
    found = steps_of(script)
    assert training_of(script).feeding == {TRAIN}
    assert [round(each.end_s - each.begin_s, 6) for each in found.evaluations] == [0.03, 0.03]
    assert [shown(step)[1] for step in found.steps] == 9 * [10.0]


def test_an_evaluation_with_backward_passes_is_no_training() -> None:
    script = Script()
    for _ in range(3):
        script.train(4)
        script.fetch(CHECK)
        script.backward()
    found = steps_of(script)
    assert (len(found.steps), len(found.evaluations)) == (12, 3)


def test_a_validation_of_one_batch_now_and_then_does_not_feed() -> None:
    script = Script()
    for _ in range(5):
        script.train(8)
        script.fetch(CHECK, quiet=True)
    assert training_of(script).feeding == {TRAIN}


@pytest.mark.parametrize("order", [(TRAIN, OTHER), (OTHER, TRAIN)])
def test_zipped_loaders_feed_one_step(order: tuple[int, int]) -> None:
    script = Script()
    for _ in range(4):
        for loader in order:
            script.fetch(loader)
        script.backward()
        script.update()
    assert training_of(script).feeding == {TRAIN, OTHER}
    assert [shown(step) for step in steps_of(script).steps] == 4 * [(2 * SAMPLES, 20.0)]


def test_batches_of_a_loader_that_trains_are_an_evaluation_where_nothing_is_trained_on_them() -> (
    None
):
    """As of the accuracy on what a model was trained with, after each epoch."""
    script = Script()
    for _ in range(2):
        script.train(4)
        script.exhaust(TRAIN)
        for _ in range(4):
            script.fetch(TRAIN, quiet=True)
            script.passes(0.005)
        script.exhaust(TRAIN)
    found = steps_of(script)
    assert [shown(step) for step in found.steps] == 8 * [(SAMPLES, 10.0)]
    assert [step.after_evaluation for step in found.steps] == [*4 * [False], True, *3 * [False]]
    # its last batch has the end of its iteration, too
    took_s = [evaluation.end_s - evaluation.begin_s for evaluation in found.evaluations]
    assert took_s == pytest.approx(2 * [4 * 0.015 + 0.010])


def test_a_batch_of_a_loader_that_trains_is_no_evaluation_where_somebody_looks_at_it_alone() -> (
    None
):
    script = Script()
    script.fetch(TRAIN)
    script.begin(TRAIN)
    script.train(4)
    found = steps_of(script)
    assert len(found.steps) == 4
    assert found.evaluations == []


def test_an_iteration_without_a_batch_is_no_evaluation() -> None:
    script = Script()
    script.train(3)
    script.begin(OTHER)
    script.exhaust(OTHER)
    script.train(3)
    assert steps_of(script).evaluations == []


def test_what_comes_out_of_a_loaders_own_queue_between_two_iterations_is_no_batch() -> None:
    """PyTorch empties it where its workers stay, and the script has left the iteration before its end."""
    script = Script()
    for _ in range(3):
        script.begin(TRAIN)
        for _ in range(3):
            script.fetch_from_queue(TRAIN)
            script.backward()
            script.update()
        script.take_from_queue()
    found = steps_of(script)
    assert [shown(step) for step in found.steps] == 9 * [(SAMPLES, 10.0)]
    assert found.evaluations == []


def test_a_future_that_was_waited_for_by_another_call_has_an_unknown_wait() -> None:
    """As by asyncio or `concurrent.futures.wait`: 43 to 60% of the time, of which none was in `result`."""
    script = Script()
    for _ in range(5):
        script.take_given()
        script.backward()
        script.update()
    known = [step.wait_is_known for step in steps_of(script).steps]
    assert known == [True, False, False, False, False]


def test_a_thread_that_waits_by_the_call_has_no_other_wait() -> None:
    """A batch may be given right before it is requested, by chance."""
    script = Script()
    for _ in range(5):
        script.take_from_queue()
        script.backward()
        script.update()
        script.take_given()
        script.backward()
        script.update()
    assert all(step.wait_is_known for step in steps_of(script).steps)


def test_a_future_that_was_done_before_the_work_on_the_batch_before_is_not_waited_for() -> None:
    script = Script(wait_s=0.0)
    for _ in range(5):
        script.take_given(later_s=0.010)
        script.backward()
        script.update()
    assert all(step.wait_is_known for step in steps_of(script).steps)


def several_loaders(script: Script, n: int) -> list[int]:
    numbers = list(range(201, 201 + n))
    for number in numbers:
        script.log.descriptions[number] = Description(number, "loader", {})
    return numbers


def test_the_first_wait_for_zipped_loaders_includes_that_both_begin() -> None:
    """Workers start meanwhile. That of the first one was left out, as the second one's came between."""
    script = Script()
    for _ in range(2):
        for loader in (TRAIN, OTHER):
            script.begin(loader, seconds=0.2)
        for _ in range(4):
            for loader in (TRAIN, OTHER):
                script.fetch(loader)
            script.backward()
            script.update()
        script.exhaust(TRAIN)
    steps = steps_of(script).steps
    # that of the second epoch has the end of the first one, too
    waits_ms = [420.0, 20.0, 20.0, 20.0, 430.0, 20.0, 20.0, 20.0]
    assert [shown(step) for step in steps] == [(2 * SAMPLES, wait_ms) for wait_ms in waits_ms]
    assert steps[4].begin_s == pytest.approx(steps[3].end_s)


def test_zipped_loaders_that_are_made_anew_for_each_epoch_feed_one_step() -> None:
    """The first of each pair was asked before a sixth of the updates, and never last: it seemed to be for
    a validation."""
    script = Script()
    numbers = several_loaders(script, 12)
    for pair in zip(numbers[::2], numbers[1::2], strict=True):
        for _ in range(20):
            for loader in pair:
                script.fetch(loader)
            script.backward()
            script.update()
        script.exhaust(pair[0])
    assert training_of(script).feeding == set(numbers)
    samples = [step.samples for step in steps_of(script).steps]
    assert samples == 120 * [2 * SAMPLES]


def zipped_with_fewer(script: Script, n: int) -> None:
    """Does steps with a batch of each of two loaders; the second one has three, and begins again."""
    for number in range(n):
        script.fetch(TRAIN)
        if number and number % 3 == 0:
            script.exhaust(OTHER)
        script.fetch(OTHER)
        script.backward()
        script.update()


def test_a_loader_that_has_fewer_batches_than_the_one_it_is_zipped_with_begins_no_epoch() -> None:
    script = Script()
    for _ in range(2):
        zipped_with_fewer(script, 8)
        script.exhaust(TRAIN)
    assert [step.epoch for step in steps_of(script).steps] == 8 * [0] + 8 * [1]


def test_several_loaders_that_are_drawn_for_each_update_feed_it() -> None:
    """As of a meta learner: of three tasks, drawn each time, a batch to adapt on and one to learn from."""
    script = Script()
    chance = random.Random(1)
    to_adapt, to_learn = several_loaders(script, 6), [301, 302, 303, 304, 305, 306]
    for _ in range(60):
        for task in chance.sample(range(6), 3):
            script.fetch(to_adapt[task])
            script.fetch(to_learn[task])
        script.backward()
        script.update()
    assert training_of(script).feeding == {*to_adapt, *to_learn}
    samples = [step.samples for step in steps_of(script).steps]
    assert samples == 60 * [6 * SAMPLES]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_loop_within_a_loop_trains_on_the_batches_of_both(quiet: bool) -> None:
    """A batch of one loader for six of another: 35% was said of waits of 41%. Without gradients it is a validation."""
    script = Script()
    for _ in range(6):
        script.fetch(OTHER, quiet=quiet)
        script.train(6)
        script.exhaust(TRAIN)
    assert training_of(script).feeding == ({TRAIN} if quiet else {TRAIN, OTHER})
    steps = steps_of(script).steps
    assert len(steps) == 36
    waits_ms = [round(1e3 * step.wait_s) for step in steps]
    assert waits_ms[6::6] == 5 * [10 if quiet else 30]


@pytest.mark.parametrize("anew", [True, False])
def test_a_validation_of_a_batch_is_no_loop_around_another(anew: bool) -> None:
    """A batch of it, with gradients, after each six steps: of a new iterator, or of an endless one."""
    script = Script()
    for _ in range(6):
        script.train(6)
        if anew:
            script.begin(CHECK)
        script.fetch(CHECK)
    assert training_of(script).feeding == {TRAIN}


def test_batches_of_a_validation_and_the_rest_of_an_epoch_are_not_taken_for_an_update() -> None:
    """Four batches for an update; at an epoch's end two, after a validation of two."""
    script = Script()
    for _ in range(6):
        for n_batches in (4, 4, 4, 4, 2):
            for _ in range(2 if n_batches == 2 else 0):
                script.fetch(CHECK)
            for _ in range(n_batches):
                script.fetch(TRAIN)
                script.backward()
            script.update()
        script.exhaust(TRAIN)
    assert training_of(script).feeding == {TRAIN}


def test_a_backward_pass_for_each_of_several_loaders_is_one_step_until_the_update() -> None:
    script = Script()
    for _ in range(4):
        for loader in (TRAIN, OTHER):
            script.fetch(loader)
            script.backward()
        script.update()
    assert [shown(step) for step in steps_of(script).steps] == 4 * [(2 * SAMPLES, 20.0)]


def test_a_loader_that_is_asked_without_gradients_before_each_update_feeds_it() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN, quiet=True)
        script.backward()
        script.update()
    assert [shown(step) for step in steps_of(script).steps] == 4 * [(SAMPLES, 10.0)]


def test_the_same_where_a_model_got_its_batch_without_gradients_is_an_evaluation() -> None:
    script = Script()
    for _ in range(4):
        script.backward()
        script.update()
        script.fetch(CHECK, quiet=True)
        called = script.log.events[-1]._replace(kind=Kind.CALLED, values=(0.0, 0.0, 0.0))
        script.log.events.append(called)
    found = steps_of(script)
    assert not training_of(script).feeding
    assert not any(step.wait_is_known for step in found.steps)


def test_a_batch_that_is_scored_without_gradients_feeds_where_a_part_of_it_is_trained_on() -> None:
    """As in hard example mining: the model is called again, with gradients, with samples that it has scored."""
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN, quiet=True)
        for gradients in (0.0, 1.0):
            called = script.log.events[-1]._replace(kind=Kind.CALLED, values=(gradients, 0.0, 0.0))
            script.log.events.append(called)
        script.backward()
        script.update()
    found = steps_of(script)
    assert training_of(script).feeding == {TRAIN}
    assert [shown(step) for step in found.steps] == 4 * [(SAMPLES, 10.0)]
    assert found.evaluations == []


def test_updates_without_batches_are_steps_whose_wait_is_not_known() -> None:
    script = Script()
    script.train(6)
    for _ in range(8):
        script.backward()
        script.update()
    known = [step.wait_is_known for step in steps_of(script).steps]
    assert known == 6 * [True] + 8 * [False]


def test_several_updates_on_each_batch_are_a_habit_and_no_step_of_their_own() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        for _ in range(5):
            script.backward()
            script.update()
    assert [step.wait_is_known for step in steps_of(script).steps] == 4 * [True]


def test_an_update_by_autograds_own_thread_is_the_training_threads() -> None:
    script = Script()
    for _ in range(4):
        script.fetch(TRAIN)
        script.backward()
        script.update(thread=HELPER)
    training = training_of(script)
    assert (training.thread, training.others) == (MAIN, frozenset())
    assert len(find_steps(training).steps) == 4


def test_of_two_threads_that_train_the_steps_are_those_of_one() -> None:
    script = Script()
    for _ in range(4):
        for thread in (MAIN, HELPER):
            script.fetch(TRAIN, thread=thread)
            script.backward(thread)
            script.update(thread=thread)
    training = training_of(script)
    assert len(training.others) == 1
    assert len(find_steps(training).steps) == 4


def test_without_an_optimizer_parameters_that_change_show_that_backward_passes_train() -> None:
    script = Script()
    for _ in range(3):
        script.fetch(TRAIN)
        script.backward()
    assert find_training(script.log) is None
    script.work(Kind.CHANGED)
    assert len(steps_of(script).steps) == 3


def test_a_step_that_the_script_marks_ends_as_it_leaves_it() -> None:
    script = Script()
    for _ in range(3):
        script.fetch(TRAIN)
        script.work(Kind.ENTERED)
        script.backward()
        script.update()
        script.work(Kind.LEFT)
        left_s = script.now_s
        script.now_s += 1.0
    assert steps_of(script).steps[-1].end_s == left_s


def test_the_end_of_workers_before_the_script_has_its_batch_is_waited_for() -> None:
    """As with `next(iter(loader))` in each step."""
    script = Script()
    for _ in range(3):
        script.begin(TRAIN)
        script.fetch(TRAIN)
        since_s = script.now_s
        script.now_s += 0.020
        ended = script.log.events[-1]._replace(
            kind=Kind.SHUT_DOWN, at_s=script.now_s, values=(since_s, 0.0, 0.0)
        )
        script.log.events.append(ended)
        script.backward()
        script.update()
    assert [shown(step) for step in steps_of(script).steps] == 3 * [(SAMPLES, 30.0)]


@pytest.mark.parametrize("worker", [math.nan, 0.0])
def test_what_a_sampler_takes_is_a_part_of_the_wait_of_its_own(worker: float) -> None:
    """20 ms in the sampler, as of a multinomial draw for each batch: it was called collating, or the hand-over."""
    script = Script()
    for _ in range(3):
        script.fetch_made(TRAIN, sampler_s=0.020, hands_over_s=0.002, worker=worker)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    for name, seconds in (("sampler_s", 0.020), ("hand_over_s", 0.002), ("data_wait_s", 0.032)):
        assert columns[name] == pytest.approx(seconds), name


def test_an_iterator_that_is_made_and_dropped_in_each_step_counts_once() -> None:
    """Architecture search: `next(iter(other))` between the batch and the model. Its waits were 96% of the time; it was
    said 39%, with a device idle for 157% of it and a compute of -57%."""
    script = Script()
    for _ in range(6):
        script.fetch_made(TRAIN)
        script.begin(OTHER, seconds=0.030)
        script.fetch_made(OTHER, starts_s=0.020, hands_over_s=0.001, ends_s=0.040, worker=0.0)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"] == pytest.approx(0.010 + 0.030 + 0.020 + 0.010 + 0.001 + 0.040)
    assert columns["iterator_s"] == pytest.approx(0.030 + 0.020 + 0.040)
    assert columns["hand_over_s"] == pytest.approx(0.001)
    made_s = columns["made_end_s"] - columns["made_start_s"]
    assert made_s == pytest.approx(0.020), (
        "nothing between the two batches is a part of making them"
    )


def test_an_iterator_that_takes_the_place_of_another_waits_for_the_end_of_its_workers() -> None:
    """`batches = iter(loader)` in each step: of a loop that waits 91% of its time it was said that it waits 48%."""
    script = Script()
    iterator = 0
    for _ in range(6):
        script.begin(TRAIN, seconds=0.030)
        if iterator:
            script.end_workers(iterator, 0.040)
        iterator = script._iterators[TRAIN, MAIN]
        script.fetch_made(TRAIN, starts_s=0.020, worker=0.0)
        script.fetch_made(TRAIN, worker=0.0)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"][1:] == pytest.approx(0.040 + 0.030 + 0.020 + 0.010 + 0.010)
    assert columns["iterator_s"][1:] == pytest.approx(0.040 + 0.030 + 0.020)
    assert columns["compute_s"][1:-1] == pytest.approx(0.002)


@pytest.mark.parametrize("worker", [math.nan, 0.0])
def test_indices_that_are_drawn_as_an_iteration_begins_are_the_samplers(worker: float) -> None:
    """Workers are given those of their first batches then: 1.4 s of a sampler were called the start of workers."""
    script = Script()
    for _ in range(3):
        script.begin(TRAIN, seconds=0.100, drawing_s=0.070)
        script.fetch_made(TRAIN, starts_s=0.020, worker=worker)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"] == pytest.approx(0.100 + 0.020 + 0.010)
    assert columns["sampler_s"] == pytest.approx(0.070)
    assert columns["iterator_s"] == pytest.approx(0.030 + 0.020)


@pytest.mark.parametrize("worker", [math.nan, 0.0])
def test_what_is_freed_of_an_iteration_that_is_left_early_is_waited_for_by_the_next_step(
    worker: float,
) -> None:
    """A sampler of 3 million indices in epochs of 10 steps: 73% was said of waits of 86%."""
    script = Script()
    ends_s = 0.0 if math.isnan(worker) else 0.040
    for _ in range(4):
        for _ in range(2):
            script.fetch_made(TRAIN, worker=worker)
            script.backward()
            script.update()
        script.leave(TRAIN, ends_s=ends_s, frees_s=0.030)
        script.passes(0.005)
    steps = steps_of(script).steps
    columns = columns_of(steps)
    check_steps(columns)
    assert [step.epoch for step in steps] == [0, 0, 1, 1, 2, 2, 3, 3]
    freed_s = [0.0, 0.0, *(3 * [0.030, 0.0])]
    assert columns["data_wait_s"] - 0.010 == pytest.approx(freed_s)
    assert columns["sampler_s"] == pytest.approx(freed_s)
    assert np.nan_to_num(columns["hand_over_s"]) == pytest.approx(0.0)
    left_s = [0.0, 0.0, *(3 * [ends_s, 0.0])]
    assert [step.left_s for step in steps] == pytest.approx(left_s), "of workers, in no wait"
    assert columns["compute_s"] - 0.002 == pytest.approx([*left_s[1:], 0.0])


@pytest.mark.parametrize("first", [TRAIN, OTHER])
def test_the_hand_over_of_two_loaders_is_that_of_each(first: int) -> None:
    """One makes its batches in the loop, while the other's are ready: that was called the way of a finished batch, and
    no workers were advised."""
    script = Script()
    for loader in (TRAIN, OTHER):
        script.begin(loader)
    for _ in range(4):
        for loader in (first, TRAIN + OTHER - first):
            by_worker = loader == OTHER
            worker = 0.0 if by_worker else math.nan
            script.fetch_made(loader, worker=worker, ahead=by_worker, hands_over_s=0.001)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"] == pytest.approx(0.010 + 0.002)
    assert columns["hand_over_s"] == pytest.approx(0.002)


def test_the_end_of_one_of_two_iterators_ends_the_workers_of_both() -> None:
    """`zip(loader, loader)` drops both as the first one has no batch: 23% was said of waits of 34%."""
    script = Script()
    for _ in range(3):
        for loader in (TRAIN, OTHER):
            script.begin(loader, seconds=0.050)
        for _ in range(4):
            for loader in (TRAIN, OTHER):
                script.fetch(loader)
            script.backward()
            script.update()
        script.exhaust(TRAIN, ends_s=0.030)
        script.leave(OTHER, ends_s=0.040)
    steps = steps_of(script).steps
    columns = columns_of(steps)
    check_steps(columns)
    assert columns["data_wait_s"][4::4] == pytest.approx(0.010 + 0.030 + 0.040 + 0.100 + 0.020)
    assert not any(step.left_s for step in steps)


def test_each_of_two_iterators_of_a_loader_that_begin_at_once_gives_a_batch() -> None:
    """`zip(loader, loader)`: of an epoch's first step the first batch was taken for one that nobody uses."""
    script = Script()
    for _ in range(3):
        for name in (MAIN, HELPER):
            script.begin(TRAIN, name, seconds=0.050)
        for event in script.log.events[-2:]:
            script.log.events.remove(event)
            script.log.events.append(event._replace(thread=MAIN))
        for _ in range(4):
            for name in (MAIN, HELPER):
                script.fetch_of(TRAIN, name)
            script.backward()
            script.update()
    steps = steps_of(script).steps
    assert [step.samples for step in steps] == 12 * [2 * SAMPLES]
    waits_ms = [round(1e3 * step.wait_s) for step in steps]
    assert waits_ms == 3 * [120, 20, 20, 20]


def test_workers_that_end_with_each_batch_are_no_work_on_it() -> None:
    """Epochs of one batch: the end of workers in `next()`, where there is none any more, was called the dataset."""
    script = Script()
    for _ in range(4):
        script.begin(TRAIN, seconds=0.030)
        script.fetch_made(TRAIN, starts_s=0.020, worker=0.0)
        script.backward()
        script.update()
        script.exhaust(TRAIN, ends_s=0.040)
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"][1:] == pytest.approx(0.010 + 0.040 + 0.030 + 0.020 + 0.010)
    assert columns["iterator_s"][1:] == pytest.approx(0.040 + 0.030 + 0.020)


def test_an_iterator_that_is_freed_before_work_or_an_evaluation_is_no_wait() -> None:
    script = Script()
    for act in ("none", "work", "evaluation"):
        script.begin(TRAIN)
        script.train(3)
        script.leave(TRAIN, frees_s=0.030)
        if act == "work":
            script.backward()
            script.update()
        elif act == "evaluation":
            script.fetch(CHECK, quiet=True)
            script.exhaust(CHECK)
    script.train()
    waits_ms = [round(1e3 * step.wait_s) for step in steps_of(script).steps]
    assert waits_ms == [10, 10, 10, 40, 10, 10, 10, 10, 10, 10]


def test_an_iterator_that_is_freed_at_once_delays_its_batch() -> None:
    """`next(iter(loader))` in each step."""
    script = Script()
    for _ in range(3):
        script.begin(TRAIN)
        script.fetch_made(TRAIN, frees_s=0.030)
        script.backward()
        script.update()
    columns = columns_of(steps_of(script).steps)
    check_steps(columns)
    assert columns["data_wait_s"] == pytest.approx(0.040)
    assert columns["iterator_s"] == pytest.approx(0.030)


@given(
    st.lists(
        st.sampled_from(
            [
                *("train", "begin", "other", "ended", "queue", "work", "update", "exhaust", "drop"),
                *("free", "leave"),
            ]
        )
    ),
    st.randoms(use_true_random=False),
)
def test_no_moment_counts_twice_whatever_a_script_does(
    acts: list[str], chance: random.Random
) -> None:
    """Iterators that are begun long before they are asked, or beside others, and queues that are polled."""
    script = Script(wait_s=0.004, work_s=0.002)
    script.train(3)
    for act in acts:
        if act == "train":
            script.train()
        elif act == "begin":
            script.begin(OTHER, seconds=chance.random() / 50)
        elif act in ("other", "ended"):
            ends_s = chance.random() / 50 if act == "ended" else 0.0
            worker = chance.choice([math.nan, 0.0])
            script.fetch_made(OTHER, sampler_s=0.003, starts_s=0.005, ends_s=ends_s, worker=worker)
        elif act == "drop" and (OTHER, MAIN) in script._iterators:
            script.end_workers(script._iterators[OTHER, MAIN], chance.random() / 50)
        elif act == "free" and (OTHER, MAIN) in script._iterators:
            script.free(script._iterators[OTHER, MAIN], chance.random() / 50)
        elif act == "leave" and (TRAIN, MAIN) in script._iterators:
            script.leave(TRAIN, ends_s=chance.choice([0.0, 0.02]), frees_s=0.004)
        elif act == "queue":
            script.take_from_queue()
        elif act == "work":
            script.backward()
        elif act == "update":
            script.update()
        elif act == "exhaust" and (TRAIN, MAIN) in script._iterators:
            script.exhaust(TRAIN)
    script.train(3)
    check_steps(columns_of(steps_of(script).steps))


def test_a_loader_inside_the_one_that_is_asked_made_its_batch() -> None:
    script = Script()
    script.begin(TRAIN)
    script.begin(OTHER)
    script.train()
    requested, received = script.log.events[2:4]
    stages = received._replace(kind=Kind.MADE, values=(0.3, 0.1, 0.2))
    between = received._replace(kind=Kind.MADE_BETWEEN, values=(0.0, 0.5, 1.0))
    inner = script.log.events[1].object
    nested = [event._replace(object=inner) for event in (requested, received, stages, between)]
    script.log.events[3:3] = nested
    (step,) = steps_of(script).steps
    assert [fetch.loader for fetch in step.fetches] == [TRAIN]
    made = step.fetches[0].stages
    assert made is not None
    assert (made.dataset_s, made.transform_s, made.collate_s) == (0.3, 0.1, 0.2)


@given(st.randoms(use_true_random=False))
def test_what_other_threads_do_changes_no_step(chance: random.Random) -> None:
    """Events of a thread that fetches and evaluates, anywhere between those of the one that trains."""
    alone = Script()
    alone.train(5)
    alone.exhaust(TRAIN)
    helper = Script()
    for _ in range(7):
        helper.fetch(CHECK, thread=HELPER, quiet=chance.random() < 0.5)
    ours, theirs = list(alone.log.events), list(helper.log.events)
    mixed = EventLog({**alone.log.descriptions, **helper.log.descriptions})
    while ours or theirs:
        source = ours if theirs == [] or (ours and chance.random() < 0.5) else theirs
        mixed.events.append(source.pop(0))
    found = find_training(mixed)
    assert found is not None
    # NaN is not equal to itself.
    assert repr(find_steps(found).steps) == repr(steps_of(alone).steps)


@given(st.lists(st.sampled_from(["train", "fetch", "check", "backward", "update", "exhaust"])))
def test_no_order_of_events_ends_it(words: list[str]) -> None:
    """Whatever a script does, its steps have known ends in the order of time."""
    script = Script()
    script.train()
    for word in words:
        {
            "train": script.train,
            "fetch": lambda: script.fetch(TRAIN),
            "check": lambda: script.fetch(CHECK, quiet=True),
            "backward": script.backward,
            "update": script.update,
            "exhaust": lambda: (script.fetch(TRAIN), script.exhaust(TRAIN)),
        }[word]()
    ends = [step.end_s for step in steps_of(script).steps]
    assert ends == sorted(ends)
    assert len(ends) >= 1
