"""The figures of steps, held against what the writer of a trace put into it."""

import numpy as np
import pytest

from tests.shares import check_steps
from tests.traces.written import GPU, IN_WORKERS, WrittenTrace, trained_on_cpu, trained_on_gpu
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.traces.columns import columns_of
from vitprof.traces.loop import find_loop

N = 40


def columns(trace: WrittenTrace, batch_size: int = 0) -> Series:
    events = trace.collected()
    steps = columns_of(find_loop(events.threads), events.work, batch_size=batch_size)
    check_steps(steps)
    return steps


def frac(steps: Series, name: str) -> float:
    """The share of the time after the warm-up that a column has."""
    kept = (steps["warmup"] == 0) & (steps["step"] > 0)
    return float(steps[name][kept].sum() / steps["step_s"][kept].sum())


def causes(steps: Series) -> dict[str, float]:
    return RunGaps.of(steps, []).training.shares()


def test_a_gpu_that_waits_for_its_batches() -> None:
    """10 ms of waiting, a copy of 1 ms, and 4 ms of work that begin 0.01 ms after their launch."""
    steps = columns(
        trained_on_gpu(
            N, wait_ms=10.0, copy_ms=1.0, work_ms=4.0, launch_ms=0.4, waits_for_work=True
        )
    )
    step_ms = 10.0 + 0.01 + 1.0 + 4.0 + 0.005
    assert np.median(steps["step_s"][1:]) == pytest.approx(step_ms / 1e3)
    assert np.median(steps["data_wait_s"]) == pytest.approx(0.010)
    assert np.median(steps["h2d_s"]) == pytest.approx(0.001)
    assert np.median(steps["compute_s"]) == pytest.approx(0.004)
    assert frac(steps, "exposed_wait_s") == pytest.approx(10.0 / step_ms)
    shares = causes(steps)
    assert shares["data_wait"] == pytest.approx(10.0 / step_ms, abs=1e-4)
    assert shares["h2d"] == pytest.approx(1.0 / step_ms, abs=1e-4)
    assert shares["busy"] == pytest.approx(4.0 / step_ms, abs=1e-4)
    assert np.nansum(steps["launch_idle_s"]) == pytest.approx(0.0, abs=1e-9)


def test_a_wait_that_is_hidden_costs_nothing() -> None:
    """The host waits 2 ms for each batch while the device works for 6 ms on what it has."""
    steps = columns(trained_on_gpu(N, wait_ms=2.0, work_ms=6.0, launch_ms=0.4))
    late = steps["step"] >= 5
    assert np.median(steps["data_wait_s"]) == pytest.approx(0.002)
    assert steps["exposed_wait_s"][late].max() == pytest.approx(0.0, abs=1e-9)
    assert steps["gap_s"][late].max() == pytest.approx(0.0, abs=1e-9)
    assert steps["step_s"][late] == pytest.approx(np.full(late.sum(), 0.006))


def test_bubbles_between_launches_are_found() -> None:
    """Ten kernels of 0.1 ms, launched 0.4 ms apart: the device waits for Python three quarters of a step."""
    trace = trained_on_gpu(N, wait_ms=0.1, launch_ms=4.0, work_ms=1.0, n_kernels=10)
    steps = columns(trace)
    # from the first kernel to the end of the last one: nine times 0.4 ms, and 0.1 ms
    assert np.median(steps["compute_s"]) == pytest.approx(0.0037)
    assert np.median(steps["launch_idle_s"]) == pytest.approx(0.0027)
    shares = causes(steps)
    assert shares["data_wait"] == pytest.approx(0.1 / 4.1, abs=0.002)


def test_kernels_that_were_queued_do_not_wait_for_launches() -> None:
    """The device takes a microsecond from one to the next, whoever launched them long ago."""
    trace = WrittenTrace(deviceProperties=[GPU])
    for number in range(N):
        at_ms = number * 20.0
        trace.fetch(at_ms, 1.0)
        for kernel in range(100):
            trace.work(at_ms + 5.0 + 0.006 * kernel, 0.005, launched_ms=at_ms + 1.0 + 0.01 * kernel)
        trace.update(at_ms + 3.0, 0.5)
    assert columns(trace)["launch_idle_s"].max() == pytest.approx(0.0, abs=1e-9)


def test_where_no_launch_is_recorded_bubbles_are_not_known() -> None:
    trace = trained_on_gpu(N, wait_ms=10.0, work_ms=4.0, waits_for_work=True)
    trace.events = [event for event in trace.events if event.get("cat") != "cuda_runtime"]
    steps = columns(trace)
    assert np.isnan(steps["launch_idle_s"]).all()
    assert frac(steps, "exposed_wait_s") == pytest.approx(10.0 / 14.0, abs=0.05)


def after_the_update(*, idle_ms: float, work_ms: float = 1.0) -> Series:
    """4 ms of work, the update, and then so much more work, launched at once: all of it in 10 ms."""
    trace = WrittenTrace(deviceProperties=[GPU])
    for number in range(N):
        at_ms = number * 10.0
        trace.fetch(at_ms, 0.5)
        trace.work(at_ms + 0.6, 4.0, launched_ms=at_ms + 0.55)
        trace.update(at_ms + 0.7, 0.1)
        trace.work(at_ms + 4.6 + idle_ms, work_ms, launched_ms=at_ms + 0.9)
    return columns(trace)


def test_what_comes_after_the_update_is_no_step_where_the_device_has_caught_up() -> None:
    """A metric on the GPU: the script does something else for 5 ms."""
    steps = after_the_update(idle_ms=2.0)
    assert np.median(steps["compute_s"]) == pytest.approx(0.004)
    assert np.median(steps["outside_s"][1:]) == pytest.approx(0.0054)
    assert causes(steps)["outside"] == pytest.approx(0.54, abs=0.01)


def test_what_comes_after_the_update_is_the_steps_where_the_device_has_not() -> None:
    """An average of the weights, of a model that is never idle."""
    steps = after_the_update(idle_ms=0.0, work_ms=6.0)
    assert np.median(steps["compute_s"]) == pytest.approx(0.010)
    assert np.isnan(steps["outside_s"]).all()


def test_a_copy_of_the_next_batch_in_another_stream_is_hidden() -> None:
    """A prefetcher launches it before the work of this one, which does not wait for it."""
    trace = WrittenTrace(deviceProperties=[GPU])
    for number in range(N):
        at_ms = number * 10.0
        trace.fetch(at_ms, 0.5)
        trace.copy(at_ms + 0.7, 3.0, launched_ms=at_ms + 0.55, stream=20)
        trace.work(at_ms + 0.71, 9.2, launched_ms=at_ms + 0.6)
        trace.update(at_ms + 0.8, 0.1)
    steps = columns(trace)
    shares = causes(steps)
    assert shares["busy"] > 0.91
    assert shares["h2d"] < 0.01


def test_a_copy_that_another_thread_has_launched_is_seen_in_the_gap() -> None:
    trace = WrittenTrace(deviceProperties=[GPU])
    for number in range(N):
        at_ms = number * 10.0
        trace.copy(at_ms + 1.0, 4.0, launched_ms=at_ms - 0.5, stream=20)
        trace.fetch(at_ms, 0.5)
        trace.work(at_ms + 5.0, 4.0, launched_ms=at_ms + 0.6)
        trace.update(at_ms + 0.8, 0.1)
    steps = columns(trace)
    assert causes(steps)["h2d"] == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_batch_that_is_waited_for_in_the_middle_of_a_step(on_gpu: bool) -> None:
    """Two loaders, the second one asked after the work on the first: 3 ms each, 4 ms of work in all."""
    trace = WrittenTrace(deviceProperties=[GPU] if on_gpu else [])
    for number in range(N):
        at_ms = number * 10.0
        trace.fetch(at_ms, 3.0)
        trace.fetch(at_ms + 5.0, 3.0)
        trace.update(at_ms + 9.0, 1.0)
        if on_gpu:
            trace.work(at_ms + 3.0, 2.0, launched_ms=at_ms + 3.0)
            trace.work(at_ms + 8.0, 2.0, launched_ms=at_ms + 8.0)
    steps = columns(trace, batch_size=8)
    assert np.median(steps["data_wait_s"]) == pytest.approx(0.006)
    assert np.median(steps["compute_s"]) == pytest.approx(0.004)
    assert frac(steps, "exposed_wait_s") == pytest.approx(0.6)
    assert set(steps["samples"]) == {16.0}


def test_the_cpu_trains_on_the_hosts_clock() -> None:
    steps = columns(trained_on_cpu(N, wait_ms=7.0, work_ms=3.0, iterator=IN_WORKERS), batch_size=32)
    assert np.median(steps["data_wait_s"]) == pytest.approx(0.007)
    assert np.median(steps["compute_s"]) == pytest.approx(0.003)
    assert frac(steps, "exposed_wait_s") == pytest.approx(7.0 / 10.02, abs=1e-4)
    assert set(steps["samples"]) == {32.0}
    assert causes(steps)["outside"] == pytest.approx(0.02 / 10.02, abs=1e-3)


@pytest.mark.parametrize(("first", "n_warmup"), [(0, 5), (3, 2), (4, 1), (12, 1)])
def test_the_warm_up_is_that_of_the_training_not_of_the_profiler(first: int, n_warmup: int) -> None:
    steps = columns(trained_on_cpu(N, wait_ms=2.0, work_ms=3.0, first=first))
    assert steps["warmup"].sum() == n_warmup


def test_an_evaluation_is_no_idle_time() -> None:
    """100 ms of evaluation after each 10 steps of 4 ms, half of them a wait."""
    trace = WrittenTrace()
    at_ms = 0.0
    for number in range(N):
        trace.fetch(at_ms, 2.0)
        trace.update(at_ms + 3.5, 0.5)
        at_ms += 4.0
        if number % 10 == 9:
            for _ in range(11):
                trace.fetch(at_ms, 1.0)
                at_ms += 10.0
    steps = columns(trace)
    assert frac(steps, "exposed_wait_s") == pytest.approx(0.5, abs=1e-3)
    assert steps["epoch"].max() == 3


def test_without_a_loader_no_wait_is_said_to_be_exposed() -> None:
    trace = trained_on_gpu(N, wait_ms=10.0, work_ms=4.0, waits_for_work=True)
    trace.events = [each for each in trace.events if not str(each["name"]).startswith("enumerate")]
    steps = columns(trace)
    assert len(steps["step"]) == N
    assert np.isnan(steps["data_wait_s"]).all()
    assert np.isnan(steps["exposed_wait_s"]).all()
    assert np.median(steps["compute_s"]) == pytest.approx(0.004)


def test_a_step_of_which_the_device_has_nothing_has_no_device_times() -> None:
    trace = trained_on_gpu(N, wait_ms=10.0, work_ms=4.0, waits_for_work=True)
    begins = [each["ts"] for each in trace.events if str(each["name"]).startswith("enumerate")]
    trace.events = [
        each
        for each in trace.events
        if each.get("cat") not in ("kernel", "cuda_runtime")
        or not begins[9] <= each["ts"] < begins[10]
    ]
    steps = columns(trace)
    assert np.flatnonzero(np.isnan(steps["compute_s"])).tolist() == [9]


def test_the_order_of_events_in_the_file_is_no_matter() -> None:
    trace = trained_on_gpu(N, wait_ms=3.0, copy_ms=0.5, work_ms=2.0, n_kernels=6)
    one, other = columns(trace), columns(trace.shuffled())
    for name, values in one.items():
        assert np.array_equal(values, other[name], equal_nan=True), name


def test_noise_of_shapes_and_stacks_is_no_matter() -> None:
    trace = trained_on_gpu(N, wait_ms=3.0, work_ms=2.0)
    before = columns(trace)
    for at_ms in range(0, 100, 7):
        trace.noise(float(at_ms))
    for name, values in columns(trace).items():
        assert np.array_equal(values, before[name], equal_nan=True), name


def test_what_an_evaluation_left_to_the_device_is_no_gap() -> None:
    """5 ms of its work are still to do as the training requests its next batch."""
    trace = trained_on_gpu(10, wait_ms=1.0, work_ms=2.0, waits_for_work=True)
    end_ms = max(each["ts"] + each["dur"] for each in trace.events if each["dur"] < 1e6)
    end_ms = (end_ms - trace.events[0]["ts"]) / 1e3
    for batch in range(3):
        trace.fetch(end_ms + 2.0 * batch, 0.5)
    trace.work(end_ms + 6.0, 9.0, launched_ms=end_ms + 6.0)
    for number in range(10):
        at_ms = end_ms + 10.0 + number * 20.0
        trace.fetch(at_ms, 1.0)
        trace.work(max(at_ms + 1.1, end_ms + 15.0), 2.0, launched_ms=at_ms + 1.05)
        trace.update(at_ms + 1.2, 0.1)
    steps = columns(trace)
    assert steps["gap_s"][10] == pytest.approx(0.0, abs=1e-9)
    assert steps["exposed_wait_s"][10] == pytest.approx(0.0, abs=1e-9)
