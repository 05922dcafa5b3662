"""The step recorder, above all with a device that finishes its work later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.measure.devices import CpuDevice
from vitprof.measure.recorder import MAX_PENDING, StepRecorder
from vitprof.measure.step_columns import BatchTimes, StepMarks, derive, gather
from vitprof.recording.columns import STEP_COLUMNS


def marks_of(**values: Any) -> StepMarks:
    """Marks with these values; every field has to be given, as the loop does."""
    marks = StepMarks()
    usual = {"outside_s": math.nan, "decoded": None, "prepared": None, "made": None, "epoch": 0, "warmup": False}
    values = usual | {"samples": 1, "loss": lambda: 0.0} | values
    of_recorder = {"previous_end", "kernel_s", "launch_idle_s"}
    assert set(values) == {field.name for field in dataclasses.fields(StepMarks)} - of_recorder
    for name, value in values.items():
        setattr(marks, name, value)
    return marks


class LaterDevice:
    """A device that passes its marks only when it is told to, at times that are told beforehand."""

    immediate = False

    def __init__(self, times: list[float] | None = None) -> None:
        self.times = times
        self.marked = self.passed = 0
        self.synchronized = 0
        self.held: set[int] = set()

    def mark(self) -> int:
        self.held.add(self.marked)
        self.marked += 1
        return self.marked - 1

    def reached(self, mark: int) -> bool:
        assert mark in self.held
        return mark < self.passed

    def seconds(self, mark: int) -> float:
        assert self.reached(mark), "asked for a time before the device passed the mark"
        return self.times[mark] if self.times is not None else mark / 8

    def release(self, *marks: int) -> None:
        for mark in marks:
            self.held.remove(mark)  # fails if it was released before

    def synchronize(self) -> None:
        self.synchronized += 1
        self.passed = self.marked

    def loss(self, value: float) -> Callable[[], float]:
        needed = self.marked  # the mark after it says that the value has arrived

        def read() -> float:
            assert self.passed > needed, "read a loss before it arrived"
            return value

        return read


class Steps:
    """A recorder on such a device, and what it emitted."""

    def __init__(self, device: LaterDevice) -> None:
        self.device = device
        self.emitted: list[StepMarks] = []
        self.recorder = StepRecorder(device, self.emitted.append)  # type: ignore[arg-type]
        self.n = 0

    def launch(
        self, t_start: float = 0.0, t_got: float = 0.0, *, compute: bool = True, made: BatchTimes | None = None
    ) -> None:
        h2d_start, h2d_end = self.device.mark(), self.device.mark()
        on_device = {"copy_start": h2d_start, "copy_end": h2d_end, "compute_start": h2d_end}
        on_device |= {"compute_end": self.device.mark() if compute else None}
        on_device |= {"loss": self.device.loss(10.0 - self.n) if compute else lambda: math.nan}
        here = {"step": self.n, "t_start": t_start, "t_got": t_got, "t_launched": t_got + 0.125}
        self.recorder.step(marks_of(**here, **on_device, samples=32, warmup=self.n < 1, made=made))
        self.n += 1

    def __getitem__(self, column: str) -> list[float]:
        return derive(gather(self.emitted))[column].tolist()


def test_every_column_of_a_step() -> None:
    # marks:                  resume, then copy start, copy end, compute end, reached; twice
    steps = Steps(LaterDevice([1.0, 1.5, 1.75, 2.75, 2.8, 3.0, 3.25, 4.25, 4.3]))
    steps.recorder.resume()
    steps.launch(t_start=1.125, t_got=1.375)
    made = BatchTimes(0.01, 0.02, 0.03, 0.04, 2.0, 2.75, 1.0, 3.0)
    steps.launch(t_start=2.5, t_got=3.0, made=made)  # asked for while the device still computed
    steps.device.synchronize()
    steps.recorder.resolve()
    expected = {
        "read_s": [math.nan, 0.01],
        "decode_s": [math.nan, 0.02],
        "transform_s": [math.nan, 0.03],
        "collate_s": [math.nan, 0.04],
        "made_start_s": [math.nan, 2.0],
        "made_end_s": [math.nan, 2.75],
        "worker": [math.nan, 1.0],
        "queue_depth": [math.nan, 3.0],
        "hand_over_s": [math.nan, 0.25],
        "host_s": [0.125, 0.125],
        "h2d_start_s": [1.5, 3.0],
        "rank": [0, 0],
        "step": [0, 1],
        "epoch": [0, 0],
        "t_start_s": [1.125, 2.5],
        "data_wait_s": [0.25, 0.5],
        "h2d_s": [0.25, 0.25],
        "compute_start_s": [1.75, 3.25],
        "compute_s": [1.0, 1.0],
        "gap_s": [0.75, 0.5],
        "exposed_wait_s": [0.25, 0.25],
        "step_s": [1.75, 1.5],
        "samples": [32, 32],
        "loss": [10.0, 9.0],
        "warmup": [1, 0],
    }
    unknown = ("kernel_s", "launch_idle_s", "decode_wait_s", "device_prepare_s", "outside_s")
    expected |= {name: [math.nan, math.nan] for name in unknown}
    assert set(expected) == set(STEP_COLUMNS)
    for name in STEP_COLUMNS:
        assert steps[name] == pytest.approx(expected[name], nan_ok=True, abs=0), name


def test_a_batch_that_was_decoded_or_prepared_on_the_device() -> None:
    """Marks that the device passes before a step: two of DALI's, two of the prefetcher's, one of a resident set."""
    names = ("t_start", "t_got", "decoded", "copy_start", "copy_end", "prepared", "compute_start", "compute_end")
    none = math.nan
    told = [
        # decoded 3 after the step before was done, which the loop did not wait for
        (1.0, 1.5, 5.0, 5.0, 5.0, none, 5.0, 6.0),
        # decoded while the step before was running: passed as that was done
        (1.5, 2.0, 6.0, 6.0, 6.0, none, 6.0, 8.0),
        # normalised from 7 to 9, beside the step before up to 8; nothing for 0.5, as it was not launched
        (6.0, 6.5, none, 6.5, 7.0, 9.0, 9.5, 10.0),
        (7.0, 7.5, none, 7.5, 8.0, 9.5, 10.0, 11.0),  # all beside it
        # the loop asked at 11.5 and had the batch at 13: 1 of that it was gathered
        (11.5, 13.0, none, 12.0, 12.0, 13.0, 13.5, 14.0),
    ]
    device = LaterDevice([2.0])
    steps = Steps(device)
    steps.recorder.resume()
    assert device.times is not None
    for i, row in enumerate(told):
        of = dict(zip(names, row, strict=True))
        marks = {}
        for name in names[2:]:
            if not math.isnan(of[name]):
                marks[name] = device.mark()
                device.times.append(of[name])
        here = {"t_start": of["t_start"], "t_got": of["t_got"], "t_launched": of["t_got"]}
        steps.recorder.step(marks_of(step=i, **here, **marks))
        device.times.append(row[-1])  # reached
    steps.recorder.resolve()
    expected = {
        "decode_wait_s": [3.0, 0.0, none, none, none],
        "data_wait_s": [3.5, 0.5, 0.5, 0.5, 1.5],
        "exposed_wait_s": [3.0, 0.0, 0.0, 0.0, 0.5],
        "device_prepare_s": [none, none, 1.0, 0.0, 1.0],
        "compute_s": [1.0, 2.0, 1.5, 1.0, 1.5],
        "gap_s": [3.0, 0.0, 0.5, 0.0, 1.5],
        "step_s": [4.0, 2.0, 2.0, 1.0, 3.0],
        "h2d_s": [0.0, 0.0, 0.5, 0.5, 0.0],
    }
    for name, values in expected.items():
        assert steps[name] == pytest.approx(values, nan_ok=True, abs=1e-12), name
    assert device.held == set()


def test_a_batch_is_made_when_the_device_has_decoded_it() -> None:
    times = [2.0, 5.0, 5.0, 6.0, 6.0]
    device = LaterDevice(times)
    steps: list[StepMarks] = []
    recorder = StepRecorder(device, steps.append)  # type: ignore[arg-type]
    recorder.resume()
    decoded, copied, end = device.mark(), device.mark(), device.mark()
    on_device = {"decoded": decoded, "copy_start": copied, "copy_end": copied, "compute_start": copied}
    times_of_it = BatchTimes(0.1, math.nan, 0.0, math.nan, 0.5, 1.4375)
    here = {"step": 0, "t_start": 1.0, "t_got": 1.5, "t_launched": 1.75, "made": times_of_it}
    recorder.step(marks_of(**here, **on_device, compute_end=end))
    recorder.resolve()
    columns = derive(gather(steps))
    made = {name: columns[name][0] for name in ("made_start_s", "made_end_s", "hand_over_s")}
    assert made == pytest.approx({"made_start_s": 0.5, "made_end_s": 5.0, "hand_over_s": math.nan}, nan_ok=True)


def test_nothing_is_emitted_before_the_device_has_passed_it() -> None:
    steps = Steps(LaterDevice())
    steps.recorder.resume()
    for _ in range(4):
        steps.launch()
        assert steps.emitted == []
    assert steps.device.synchronized == 0
    steps.device.passed = 1 + 4 * 2  # the resume mark and two steps
    steps.launch()
    assert steps["step"] == [0, 1]
    steps.device.passed += 3  # the third step but for the mark that says that all of it is there
    steps.recorder.resolve(at_most_pending=99)
    assert steps["step"] == [0, 1]
    steps.recorder.resolve()
    assert steps.device.synchronized == 1
    assert steps["step"] == [0, 1, 2, 3, 4]
    assert steps["loss"] == [10.0, 9.0, 8.0, 7.0, 6.0]


def test_a_bounded_number_waits() -> None:
    steps = Steps(LaterDevice())
    steps.recorder.resume()
    while steps.n + 1 < MAX_PENDING:  # the resume mark waits, too
        steps.launch()
    assert (steps.emitted, steps.device.synchronized) == ([], 0)
    for _ in range(3 * MAX_PENDING):
        steps.launch()
        assert steps.n - len(steps.emitted) <= MAX_PENDING
        assert len(steps.device.held) <= 4 * MAX_PENDING + 1
    assert 1 <= steps.device.synchronized <= 4
    steps.recorder.resolve()
    assert steps["step"] == list(range(steps.n))


def test_marks_are_given_back() -> None:
    steps = Steps(LaterDevice())
    steps.recorder.resume()
    steps.launch()
    steps.launch(compute=False)
    steps.recorder.resume()
    steps.recorder.resolve()
    assert steps.device.held == set()


def test_a_gap_counts_from_the_last_resume() -> None:
    steps = Steps(LaterDevice([0.0, 1.0, 1.0, 2.0, 2.0, 50.0, 50.5, 50.5, 51.0, 51.0]))
    steps.recorder.resume()
    steps.launch()
    steps.recorder.resume()  # an evaluation lay in between
    steps.launch()
    steps.recorder.resolve()
    assert (steps["gap_s"], steps["step_s"]) == ([1.0, 0.5], [2.0, 1.0])


def test_without_compute_the_step_is_all_gap() -> None:
    steps = Steps(LaterDevice([1.0, 1.5, 2.0, 2.0, 2.5, 3.5, 3.5]))
    steps.recorder.resume()
    steps.launch(1.0, 1.5, compute=False)
    steps.launch(2.0, 2.5, compute=False)
    steps.recorder.resolve()
    assert (steps["compute_s"], steps["h2d_s"]) == ([0, 0], [0.5, 1.0])
    assert steps["gap_s"] == steps["step_s"] == [1.0, 1.5]
    assert all(math.isnan(loss) for loss in steps["loss"])


def test_the_cpu_emits_at_once() -> None:
    clock = iter(np.arange(0.0, 100.0).tolist())
    steps: list[StepMarks] = []
    device = CpuDevice(lambda: next(clock))
    recorder = StepRecorder(device, steps.append)
    recorder.resume()
    for step in range(3):
        t_start, t_got = device.mark(), device.mark()
        h2d_start, h2d_end, compute_end = device.mark(), device.mark(), device.mark()
        on_device = {"copy_start": h2d_start, "copy_end": h2d_end, "compute_start": h2d_end}
        here = {"step": step, "t_start": t_start, "t_got": t_got, "t_launched": compute_end}
        recorder.step(marks_of(**here, **on_device, compute_end=compute_end))
        assert len(steps) == step + 1


@given(
    waits=st.lists(st.tuples(*[st.floats(0, 10)] * 6), min_size=1, max_size=20),
)
def test_what_adds_up(waits: list[tuple[float, ...]]) -> None:
    """Whatever host and device do: gap + compute = step, and only a wait inside the gap is exposed."""
    times, asked = [0.0], [0.0]
    host = device = 0.0
    for between, wait, launch, copy_delay, copy, compute in waits:
        t_start = host + between
        t_got = t_start + wait
        copy_start = max(device, t_got + copy_delay)
        device = copy_start + copy + compute
        times += [copy_start, copy_start + copy, device, device]
        asked += [t_start, t_got]
        host = t_got + launch
    steps = Steps(LaterDevice(times))
    steps.recorder.resume()
    for i in range(len(waits)):
        steps.launch(asked[1 + 2 * i], asked[2 + 2 * i])
    steps.recorder.resolve()
    for gap, compute, step, exposed, wait in zip(
        *(steps[c] for c in ("gap_s", "compute_s", "step_s", "exposed_wait_s", "data_wait_s")), strict=True
    ):
        assert gap + compute == pytest.approx(step, abs=1e-9)
        assert gap >= 0
        assert 0 <= exposed <= min(gap, wait) + 1e-9
    assert sum(steps["step_s"]) == pytest.approx(times[-1] - times[0], abs=1e-9)
