"""What is taken of a trace's events: spans of threads, and the work of one device with its launches."""

import numpy as np
import pytest

from tests.traces.written import (
    AUTOGRAD,
    BEGIN_US,
    IN_THE_LOOP,
    PROCESS,
    TRAINING,
    WrittenTrace,
)
from vitprof.traces.events import EventCollector, Role, WorkKind, role_of

MAIN = (str(PROCESS), str(TRAINING))


@pytest.mark.parametrize(
    ("category", "role"),
    [
        ("kernel", Role.KERNEL),
        ("Kernel", Role.KERNEL),
        ("gpu_memcpy", Role.COPY),
        ("Memcpy", Role.COPY),
        ("gpu_memset", Role.FILL),
        ("cuda_runtime", Role.LAUNCH),
        ("cuda_driver", Role.LAUNCH),
        ("Runtime", Role.LAUNCH),
        ("xpu_runtime", Role.LAUNCH),
        ("user_annotation", Role.HOST),
        ("cpu_op", Role.HOST),
        ("Operator", Role.HOST),
        ("", Role.HOST),
        ("gpu_user_annotation", Role.OTHER),
        ("python_function", Role.OTHER),
    ],
)
def test_categories_of_now_and_of_older_profilers(category: str, role: Role) -> None:
    assert role_of(category) is role


def test_spans_are_those_of_their_thread_in_order() -> None:
    trace = WrittenTrace()
    trace.fetch(20.0, 3.0)
    trace.fetch(0.0, 2.0)
    trace.fetch(5.0, 1.0, thread=AUTOGRAD)
    trace.update(10.0, 1.5)
    trace.iteration(12, 0.0, 19.0)
    trace.noise(3.0)
    events = trace.collected()
    spans = events.threads[MAIN]
    assert [fetch.start_s for fetch in spans.fetches] == pytest.approx([0.0, 0.020])
    assert [fetch.end_s for fetch in spans.fetches] == pytest.approx([0.002, 0.023])
    assert spans.fetches[0].label == "_MultiProcessingDataLoaderIter.__next__"
    assert spans.updates[0].end_s == pytest.approx(0.0115)
    assert [iteration.label for iteration in spans.iterations] == ["12"]
    assert len(events.threads[str(PROCESS), str(AUTOGRAD)].fetches) == 1
    # the device's copy of the profiler's step says that it takes hours
    assert events.seconds == pytest.approx(0.023)
    assert events.device is None


def test_a_loader_within_a_loader_is_part_of_its_wait() -> None:
    """A Dataset that has a DataLoader of its own, without workers."""
    trace = WrittenTrace()
    trace.fetch(1.0, 2.0, IN_THE_LOOP)
    trace.fetch(0.0, 10.0, IN_THE_LOOP)
    trace.update(11.0, 2.0)
    trace.update(11.5, 1.0)
    spans = trace.collected().threads[MAIN]
    assert [(fetch.start_s, fetch.end_s) for fetch in spans.fetches] == [(0.0, 0.01)]
    assert len(spans.updates) == 1


def test_work_has_its_launch_by_their_number() -> None:
    trace = WrittenTrace()
    trace.work(5.0, 2.0, launched_ms=1.0)
    trace.copy(0.5, 0.2, launched_ms=0.1)
    trace.copy(0.8, 0.2, pinned=False, launched_ms=0.6)
    trace.work(8.0, 1.0, category="gpu_memset", name="Memset (Device)")
    trace.work(
        9.0, 1.0, category="gpu_memcpy", name="Memcpy DtoH (Device -> Pinned)", launched_ms=8.9
    )
    events = trace.shuffled().collected()
    work = events.work
    copies = [WorkKind.TO_DEVICE, WorkKind.TO_DEVICE]
    rest = [WorkKind.KERNEL, WorkKind.FILL, WorkKind.OTHER_COPY]
    assert work.kind.tolist() == copies + rest
    assert work.launch_is_known.tolist() == [True, True, True, False, True]
    ms = 1e3 * (work.launched_s - work.launched_s[0])
    assert ms.tolist() == pytest.approx([0.0, 0.5, 0.9, 7.9, 8.8])
    took_ms = 1e3 * (work.launch_end_s - work.launched_s)
    assert took_ms.tolist() == pytest.approx([0.005, 0.005, 0.005, 0.0, 0.005])
    assert (events.copies, events.pinned_copies) == (2, 1)
    assert work.known_launches_frac == pytest.approx(0.8)


def test_kernels_of_a_graph_share_its_launch() -> None:
    trace = WrittenTrace()
    for since_ms in (1.0, 2.0, 3.0):
        trace.work(since_ms, 0.9)
        trace.events[-1]["args"]["correlation"] = 77
    launch = {"category": "cuda_runtime", "correlation": 77}
    trace.span("cudaGraphLaunch", 0.5, 0.1, **launch)  # type: ignore[arg-type]
    work = trace.collected().work
    assert work.launch_is_known.all()
    assert np.ptp(work.launched_s) == 0.0


def test_calls_that_launch_nothing_are_passed_over() -> None:
    trace = WrittenTrace()
    trace.work(1.0, 1.0)
    number = trace.events[-1]["args"]["correlation"]
    trace.span("cudaEventQuery", 0.0, 0.1, category="cuda_runtime", correlation=number)
    assert not trace.collected().work.launch_is_known.any()


def test_of_several_devices_the_one_that_works_longest() -> None:
    trace = WrittenTrace()
    trace.work(0.0, 1.0, device=0)
    for since_ms in range(5):
        trace.work(float(since_ms), 0.9, device=2)
    events = trace.collected()
    assert (events.device, events.other_devices, len(events.work)) == (2, 1, 5)


def test_events_without_a_time_are_counted_and_left_out() -> None:
    trace = WrittenTrace()
    trace.fetch(0.0, 1.0)
    fetch = trace.events[0]
    for wrong in ({"ts": "now"}, {"ts": None}, {"ts": float("nan")}, {"dur": [1]}):
        trace.events.append(fetch | wrong)
    trace.events += [{k: v for k, v in fetch.items() if k != "ts"}, {"ph": "X"}, {}]
    trace.events.append(fetch | {"ph": "X", "name": 5})
    events = trace.collected()
    assert len(events.threads[MAIN].fetches) == 1
    assert events.untimed == 5


@pytest.mark.parametrize("wrong", [None, "many", {"a": 1}, 1e400, 10**30])
def test_numbers_that_are_none_are_no_matter(wrong: object) -> None:
    trace = WrittenTrace()
    trace.work(0.0, 1.0)
    trace.work(2.0, 1.0)
    trace.events[0]["args"] |= {"correlation": wrong, "device": wrong}
    trace.events[1]["args"] = wrong
    assert len(trace.collected().work) == 2


def test_times_of_older_profilers_are_microseconds_since_1970() -> None:
    """Their floats are a quarter of a microsecond apart, and a duration is no difference of two."""
    collector = EventCollector()
    since_us = 1_666_149_715_033_200
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    event = {"ph": "X", "cat": "Operator", "name": name, "pid": 1, "tid": "1"}
    collector.add(event | {"ts": since_us, "dur": 413_451})
    events = collector.finish()
    assert events.origin_us == since_us
    assert events.threads["1", "1"].fetches[0].end_s == pytest.approx(0.413451)
    assert since_us > BEGIN_US


def test_steps_of_the_profiler_that_overlap_by_a_rounding_are_all_kept() -> None:
    trace = WrittenTrace()
    for number in range(4):
        trace.iteration(number, number * 10.0 - 1e-6, 10.0)
    assert len(trace.collected().threads[MAIN].iterations) == 4
