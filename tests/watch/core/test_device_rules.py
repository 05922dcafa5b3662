"""What a device did of each step, one shape of script a test, at times that nobody measured.

Unless a script says otherwise a batch takes 10 ms, the host launches each part of the work in 1 ms, and
the device takes 2, 4 and 2 ms for forward pass, backward pass and update.
"""

import math

import pytest

from tests.watch.core.written import OTHER, TRAIN
from tests.watch.core.written_device import ASIDE, COPIES, DeviceScript, figures_of, told
from vitprof.watch.core.device_columns import DeviceSteps
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import MarkedPoint

NEVER = [0.0, 0.0, 0.0]


def test_a_device_that_waits_for_data_is_idle_as_long_as_the_wait_is_not_hidden() -> None:
    script = DeviceScript()
    script.train(4)
    columns = told(script)
    # 8 ms of work, of which 2 ms are launched before the request, and 6 ms hide as much of the wait
    assert columns["data_wait_s"] == 4 * [0.010]
    assert columns["exposed_wait_s"][1:3] == 2 * [0.004]
    assert columns["compute_s"][1:3] == 2 * [0.008]
    assert columns["gap_s"][1:3] == 2 * [0.004]
    assert columns["step_s"][1:3] == 2 * [0.012]


def test_a_wait_that_is_hidden_behind_work_costs_nothing() -> None:
    script = DeviceScript(wait_s=0.003)
    script.train(4)
    columns = told(script)
    assert columns["exposed_wait_s"][1:3] == [0.0, 0.0]
    assert columns["gap_s"][1:3] == [0.0, 0.0]
    assert columns["compute_s"][1:3] == [0.008, 0.008]


@pytest.mark.parametrize("held_up_s", [0.0, 0.001], ids=["at once", "the host is held up"])
def test_copies_right_after_one_another_are_one_and_compute_begins_at_its_end(
    held_up_s: float,
) -> None:
    """Also where the host is held up between the two: the device still copies the first tensor then."""
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.copy(0.003)
        script.now_s += held_up_s
        script.copy(0.001)
        script.backward()
        script.update()
    columns = told(script)
    assert columns["h2d_s"] == 3 * [0.004]
    assert columns["compute_s"][1] == 0.008
    assert columns["gap_s"][1] == columns["exposed_wait_s"][1] + 0.004


def test_labels_that_are_moved_after_the_forward_pass_do_not_make_that_a_copy() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.copy(0.001)
        script.launch(0.002)
        script.now_s += 0.002
        script.copy(0.001)
        script.backward()
        script.update()
    columns = told(script)
    assert columns["h2d_s"] == 3 * [0.001]
    assert columns["compute_s"][1] == 0.011


def test_a_tensor_that_stays_in_the_hosts_memory_is_no_copy() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.copy(0.001, to_device=False)
        script.backward()
        script.update()
    assert told(script)["h2d_s"] == NEVER


def test_a_copy_in_a_stream_of_its_own_does_not_hold_up_the_work() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.copy(0.005, COPIES)
        script.backward()
        script.update()
    columns = told(script)
    assert columns["h2d_s"] == 3 * [0.005]
    assert columns["compute_start_s"][1] == columns["h2d_start_s"][1]
    assert columns["compute_s"][1] == 0.008


@pytest.mark.parametrize("stream", [1, COPIES])
def test_a_batch_that_is_copied_after_the_work_is_the_next_steps(stream: int) -> None:
    """As with Accelerate: it copies the batch that it has, then fetches another one."""
    script = DeviceScript()
    script.fetch(TRAIN)
    for _ in range(4):
        script.copy(0.003, stream)
        script.fetch(TRAIN)
        script.backward()
        script.update()
    columns = told(script)
    assert columns["h2d_s"] == 4 * [0.003]
    assert columns["compute_s"][1:] == 3 * [0.008]
    assert columns["gap_s"][2] >= 0.003 or stream == COPIES


def test_what_is_copied_between_two_backward_passes_is_no_copy_of_the_batch() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.copy(0.001)
        script.backward()
        script.copy(0.005)
        script.backward()
        script.update()
    assert told(script)["h2d_s"] == 3 * [0.001]


def test_what_an_evaluation_copies_is_no_batch_of_the_next_step() -> None:
    script = DeviceScript()
    script.train(3)
    script.evaluate(2, 0.005)
    script.train(2)
    assert told(script)["h2d_s"] == 5 * [0.0]


def test_the_gap_after_an_evaluation_counts_from_the_next_request() -> None:
    script = DeviceScript()
    script.train(3)
    script.evaluate(2, 0.005)
    script.train(2)
    columns = told(script)
    # the device still evaluates for 5 ms as the next batch is requested, and then has none for 5 ms
    assert columns["gap_s"][3] == pytest.approx(0.005)
    assert columns["exposed_wait_s"][3] == pytest.approx(0.005)


def test_workers_that_start_after_an_evaluation_are_waited_for() -> None:
    script = DeviceScript()
    script.train(3)
    script.evaluate(2, 0.0)
    script.begin_slowly(TRAIN, 0.100)
    script.train(2)
    columns = told(script)
    assert columns["data_wait_s"][3] == 0.110
    assert columns["gap_s"][3] == 0.110
    assert columns["exposed_wait_s"][3] == 0.110


def test_a_step_is_over_as_the_next_iteration_begins() -> None:
    script = DeviceScript()
    script.train(3)
    script.launch(0.005)
    script.begin_slowly(TRAIN, 0.100)
    script.train(2)
    columns = told(script)
    assert columns["compute_s"][2] == 0.013
    assert columns["data_wait_s"][3] == 0.110
    assert columns["exposed_wait_s"][3] == pytest.approx(0.110 - 0.011)


def test_what_the_script_does_after_the_optimizer_is_no_part_of_the_step() -> None:
    script = DeviceScript()
    for _ in range(4):
        script.train()
        script.wait_for_device()
        script.now_s += 0.020
    columns = told(script)
    assert columns["compute_s"][1:] == 3 * [0.008]
    assert columns["outside_s"][1:] == pytest.approx([0.020, 0.020, 0.020])
    assert columns["exposed_wait_s"][1:3] == [0.010, 0.010]


def test_a_device_that_still_works_at_the_request_works_for_the_step() -> None:
    """Averaging of weights, say, which is launched after the optimizer's step."""
    script = DeviceScript()
    for _ in range(4):
        script.train()
        script.launch(0.005)
    columns = told(script)
    assert columns["compute_s"][1:3] == [0.013, 0.013]
    assert columns["compute_s"][3] == 0.008, "of the last one nothing shows it"
    assert all(map(math.isnan, columns["outside_s"]))


def test_many_optimizers_leave_the_end_to_the_request() -> None:
    script = DeviceScript()
    for _ in range(4):
        script.fetch(TRAIN)
        script.backward()
        for _ in range(6):
            script.update()
    assert told(script)["compute_s"][1:3] == [0.018, 0.018]


def test_a_step_that_the_script_marks_is_timed_between_its_marks() -> None:
    script = DeviceScript()
    for _ in range(4):
        script.fetch(TRAIN)
        script.now_s += 0.004
        script.enter()
        script.backward()
        script.update()
        script.leave()
        script.wait_for_device()
        script.now_s += 0.020
    columns = told(script)
    assert columns["compute_s"][1:] == 3 * [0.008]
    # since it was left: the device's work, the pause, what is before the step
    assert columns["outside_s"][1] == pytest.approx(0.005 + 0.020 + 0.005)


def test_a_batch_that_is_copied_in_a_marked_step_is_no_compute() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.enter()
        script.copy(0.003)
        script.backward()
        script.update()
        script.leave()
    columns = told(script)
    assert columns["h2d_s"] == 3 * [0.003]
    assert columns["compute_s"][1] == 0.008


def test_a_graph_in_each_marked_step_is_the_work_of_that_step() -> None:
    """Of what is in a CUDA graph nothing is seen. It is captured in the script's first steps."""
    script = DeviceScript()
    script.train(2)
    for _ in range(5):
        script.fetch(TRAIN)
        script.enter()
        script.launch(0.008)
        script.leave()
    columns = told(script)
    assert columns["compute_s"][3:] == 4 * [0.008]
    assert columns["exposed_wait_s"][3:] == 4 * [0.003]


def test_a_second_loader_is_waited_for_while_the_device_works_on_the_first_ones_batch() -> None:
    script = DeviceScript()
    for _ in range(4):
        for loader in (TRAIN, OTHER):
            script.fetch(loader)
            script.copy(0.001)
            script.launch(0.003)
        script.backward()
        script.update()
    columns = told(script)
    assert columns["data_wait_s"][1:] == 3 * [0.020]
    # 10 ms of work hide the whole first wait, and the first batch's 4 ms as much of the second one
    assert columns["exposed_wait_s"][1:3] == [0.006, 0.006]


def test_a_wait_for_a_second_loader_is_exposed_where_the_device_has_no_work_left() -> None:
    script = DeviceScript()
    for _ in range(4):
        script.fetch(TRAIN)
        script.backward()
        script.fetch(OTHER)
        script.backward()
        script.update()
    columns = told(script)
    # 6 ms of work hide as much of the second wait, but for the 1 ms in which it was launched
    assert columns["data_wait_s"][1:3] == [0.020, 0.020]
    assert columns["exposed_wait_s"][1:3] == pytest.approx([0.004 + 0.005, 0.004 + 0.005], abs=2e-3)


@pytest.mark.parametrize(("seconds", "n"), [(0.003, 3), (0.0001, 0)])
def test_another_stream_that_works_while_that_of_training_is_idle_is_counted(
    seconds: float, n: int
) -> None:
    script = DeviceScript()
    for _ in range(4):
        script.fetch(TRAIN)
        script.backward()
        script.update()
        script.wait_for_device()
        script.launch(seconds, ASIDE)
        script.mark(MarkedPoint.ASIDE, ASIDE)
    script.pass_marks()
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps=0)
    device.add(script.log.events, find_steps(training).steps)
    device.take(training.thread, finished=True)
    assert device.n_side_stream_steps == n


def test_a_stream_in_which_batches_are_copied_works_on_no_step() -> None:
    script = DeviceScript()
    for _ in range(4):
        script.fetch(TRAIN)
        script.copy(0.005, COPIES)
        script.mark(MarkedPoint.ASIDE, COPIES)
        script.backward()
        script.update()
    script.pass_marks()
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps=0)
    device.add(script.log.events, find_steps(training).steps)
    device.take(training.thread, finished=True)
    assert device.n_side_stream_steps == 0


def test_a_step_is_given_out_once_the_device_has_passed_it() -> None:
    script = DeviceScript(wait_s=0.001, forward_s=0.100)
    script.train(6)
    script.pass_marks(script.now_s)
    assert len(figures_of(script)) == 0
    script.pass_marks(0.25)
    assert len(figures_of(script)) == 2
    script.pass_marks()
    assert len(figures_of(script)) == 6


def test_a_step_in_which_a_graph_was_captured_has_no_figures() -> None:
    script = DeviceScript()
    script.train(2)
    with script.capturing():
        script.train()
    script.train(2)
    columns = told(script)
    assert [math.isnan(compute_s) for compute_s in columns["compute_s"]] == [
        *(False, False),
        *(True, False, False),
    ]
    assert math.isnan(columns["exposed_wait_s"][2])
    assert columns["data_wait_s"] == 5 * [0.010]


def test_marks_begin_with_the_first_work_and_the_step_with_them() -> None:
    script = DeviceScript()
    with script.capturing():
        script.fetch(TRAIN)
    script.backward()
    script.update()
    script.train(2)
    columns = told(script)
    assert columns["compute_s"][0] == 0.006
    assert columns["h2d_s"][0] == 0.0


def test_the_loss_is_that_of_the_last_backward_pass_that_has_one() -> None:
    script = DeviceScript()
    for loss in (0.5, math.nan, 0.25):
        script.fetch(TRAIN)
        script.backward(loss=loss)
        script.update()
    columns = told(script)
    assert columns["loss"][::2] == [0.5, 0.25]
    assert math.isnan(columns["loss"][1])


def test_forward_pass_and_update_have_ends_of_their_own() -> None:
    script = DeviceScript()
    script.train(3)
    script.pass_marks()
    step = figures_of(script)[1]
    assert step is not None
    assert step.forward_end - step.compute_start == pytest.approx(0.002)
    assert step.stepped - step.forward_end == pytest.approx(0.006)


def test_the_parts_of_compute_are_those_of_the_device() -> None:
    script = DeviceScript()
    script.train(3)
    columns = told(script)
    assert columns["forward_compute_s"][1:] == [0.002, 0.002]
    assert columns["backward_compute_s"][1:] == [0.004, 0.004]
    assert columns["optimizer_compute_s"][1:] == [0.002, 0.002]


def test_the_parts_of_a_step_with_several_passes_are_not_known() -> None:
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.backward()
        script.backward()
        script.update()
    columns = told(script)
    assert all(map(math.isnan, columns["forward_compute_s"]))
    assert columns["compute_s"][1] == 0.014


def test_the_pass_in_an_optimizers_closure_is_before_its_own_work() -> None:
    """As in Lightning: the optimizer calls the model, and marks again where the pass has ended."""
    script = DeviceScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.mark(MarkedPoint.STEPPING)
        script.backward()
        script.now_s += 1e-6
        script.update()
    columns = told(script)
    assert columns["forward_compute_s"][1:] == [0.002, 0.002]
    assert columns["optimizer_compute_s"][1:] == [0.002, 0.002]


def test_without_marks_the_steps_are_those_of_the_host() -> None:
    script = DeviceScript()
    with script.capturing():
        script.train(3)
    assert figures_of(script) == 3 * [None]
    columns = told(script)
    assert columns["compute_s"][1] == 0.002


def test_updates_on_what_is_not_seen_have_no_compute_and_the_next_step_has_its_gap() -> None:
    script = DeviceScript()
    script.train(6)
    for _ in range(8):
        script.backward()
        script.update()
    columns = told(script)
    assert all(map(math.isnan, columns["compute_s"][6:]))
    assert all(map(math.isnan, columns["exposed_wait_s"][6:]))
    assert not any(map(math.isnan, columns["compute_s"][:6]))
