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

from tests.engine_fixtures import CHEAP, small_home, trained  # noqa: F401
from vitprof.config import RunConfig
from vitprof.config.accelerators import Accelerator
from vitprof.engine.train import Budget
from vitprof.measure import devices
from vitprof.measure.devices import CpuDevice
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.recorder import (
    GATED_STEPS,
    LEAST_LEFT,
    LEAST_WARMUP,
    MAX_PENDING,
    NEVER,
    SETTLING_STEPS,
    LaunchProbe,
    StepRecorder,
)
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
        self,
        t_start: float = 0.0,
        t_got: float = 0.0,
        *,
        compute: bool = True,
        copied: bool = True,
        made: BatchTimes | None = None,
    ) -> None:
        h2d_start, h2d_end = self.device.mark(), self.device.mark()
        on_device = {"copy_start": h2d_start, "copy_end": h2d_end, "compute_start": h2d_end}
        on_device |= {"compute_end": self.device.mark() if compute else None}
        on_device |= {"loss": self.device.loss(10.0 - self.n) if compute and copied else devices.not_kept}
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


def test_a_loss_that_is_not_copied_needs_no_mark_of_its_own() -> None:
    steps = Steps(LaterDevice())
    steps.recorder.resume()
    steps.launch(copied=False)
    marked = steps.device.marked
    steps.recorder.resolve()
    assert (marked, steps.device.held, len(steps.emitted)) == (4, set(), 1)


def test_a_gap_counts_from_the_last_resume() -> None:
    steps = Steps(LaterDevice([0.0, 1.0, 1.0, 2.0, 2.0, 50.0, 50.5, 50.5, 51.0, 51.0]))
    steps.recorder.resume()
    steps.launch()
    steps.recorder.resume()  # an evaluation lay in between
    steps.launch()
    steps.recorder.resolve()
    assert (steps["gap_s"], steps["step_s"]) == ([1.0, 0.5], [2.0, 1.0])
    assert steps.device.held == set()


def test_without_compute_the_step_is_all_gap() -> None:
    steps = Steps(LaterDevice([1.0, 1.5, 2.0, 2.0, 2.5, 3.5, 3.5]))
    steps.recorder.resume()
    steps.launch(1.0, 1.5, compute=False)
    steps.launch(2.0, 2.5, compute=False)
    steps.recorder.resolve()
    assert (steps["compute_s"], steps["h2d_s"]) == ([0, 0], [0.5, 1.0])
    assert steps["gap_s"] == steps["step_s"] == [1.0, 1.5]
    assert all(math.isnan(loss) for loss in steps["loss"])
    assert steps.device.held == set()


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


MS = 1e-3
PACED = (4 * MS, 0.02 * MS, 4.1 * MS)
"""Launches, lag, compute."""
AHEAD = (4 * MS, 6 * MS, 10 * MS)


class Now:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def device_of(now: Now, **values: float) -> SimulatedDevice:
    figures = {"step_s": 1 * MS, "sample_s": 0.0} | values
    return SimulatedDevice("simulated:test", Accelerator("test", origin="", **figures), now, now.sleep)  # type: ignore[arg-type]


def asked(*seen: tuple[float, float, float], left: float = math.inf) -> LaunchProbe:
    probe = LaunchProbe(device_of(Now()), 10)
    for step, figures in enumerate(seen, start=10 - len(seen)):
        assert math.isnan(probe.passed(step, 64, *figures))
    probe.ask(left)
    return probe


class TestProbe:
    def test_a_host_that_is_ahead_leaves_no_bubbles(self) -> None:
        probe = asked(*[PACED] * 2, *[AHEAD] * 8)  # first launches load kernels
        assert (probe.gates_left, probe.steady_from) == (0, 10)
        assert probe.idle_s(64, 10 * MS) == 0
        assert asked().idle_s(64, 10 * MS) == 0  # nothing resolved: the device is behind
        probe = LaunchProbe(device_of(Now()), 10)
        for step in range(2):  # nor do first steps that load kernels say anything else
            probe.passed(step, 64, *PACED)
        assert (probe.ask(math.inf), probe.idle_s(64, 10 * MS)) == (0, 0)

    def test_a_host_that_paces_the_device_is_measured(self) -> None:
        probe = asked(*[AHEAD] * 2, *[PACED] * 8)
        assert (probe.gates_left, probe.steady_from) == (GATED_STEPS, 10 + GATED_STEPS + SETTLING_STEPS)
        assert math.isnan(probe.idle_s(64, 4 * MS))
        for i in range(GATED_STEPS):
            assert probe.passed(10 + i, 64, 4 * MS, 5 * MS, (1 + i % 3) * MS) == (1 + i % 3) * MS
        for i in range(SETTLING_STEPS):
            assert math.isnan(probe.passed(10 + GATED_STEPS + i, 64, *PACED))
        assert probe.kernel_s == pytest.approx(2 * MS)
        assert probe.idle_s(64, 4 * MS) == pytest.approx(2 * MS)
        assert probe.idle_s(64, 1 * MS) == 0
        assert math.isnan(probe.idle_s(7, 1 * MS))  # of a smaller batch nobody knows

    def test_a_gate_that_ended_before_the_last_launch_tells_nothing(self) -> None:
        probe = asked(*[PACED] * 8)
        for i in range(GATED_STEPS):  # each waits for the device, as GradScaler does, or has 2,000 launches
            assert math.isnan(probe.passed(10 + i, 64, 8 * MS, 0.1 * MS, 2.3 * MS))
        assert math.isnan(probe.kernel_s)
        assert math.isnan(probe.idle_s(64, 4 * MS))

    def test_a_short_job_keeps_its_steps(self) -> None:
        probe = asked(*[PACED] * 8, left=LEAST_LEFT - 1)
        assert (probe.gates_left, probe.steady_from) == (0, 10)
        assert math.isnan(probe.idle_s(64, 4 * MS))

    def test_nobody_asks_without_a_warm_up_nor_where_work_is_done_at_once(self) -> None:
        for warmup in (0, LEAST_WARMUP - 1, LEAST_WARMUP, RunConfig().warmup_steps):
            asks_at = NEVER if warmup < LEAST_WARMUP else warmup
            assert LaunchProbe(device_of(Now()), warmup).asks_at == asks_at
        assert LaunchProbe(CpuDevice(Now()), 10).asks_at == NEVER
        assert RunConfig().warmup_steps >= LEAST_WARMUP

    def test_a_job_of_seconds_is_asked_if_it_will_have_steps_left(self) -> None:
        assert Budget(0, 20.0, began=100.0, done=5).steps_left(105.0) == 15
        assert Budget(80, math.inf, began=100.0, done=5).steps_left(105.0) == 75

    def test_a_first_step_of_seconds_makes_no_gate_of_seconds(self) -> None:
        probe = asked((2.0, 0.0, 2.0), *[PACED] * 4)
        device = probe._device
        assert isinstance(device, SimulatedDevice)
        probe.gate()
        assert device.mark() == pytest.approx(2 * PACED[0] + 100e-6)


class TestSimulatedLaunches:
    @pytest.mark.parametrize(("launch_ms", "took_ms"), [(0.0, 1.0), (0.4, 1.0), (4.0, 4.0)])
    def test_short_kernels_wait_for_their_launches(self, launch_ms: float, took_ms: float) -> None:
        now = Now()
        device = device_of(now, launch_s=launch_ms * MS)
        start = device.launch(1)
        assert now.now == pytest.approx(launch_ms * MS)  # the host was busy
        assert device.mark() - start == pytest.approx(took_ms * MS)
        assert device.utilisation_pct() <= 100 * 1 * MS / (1 / 6) + 1e-9  # bubbles are no use

    def test_behind_a_gate_they_do_not(self) -> None:
        now = Now()
        device = device_of(now, launch_s=4 * MS)
        device.gate(6 * MS)
        start = device.launch(1)
        assert start == pytest.approx(6 * MS)
        assert device.mark() - start == pytest.approx(1 * MS)


def run(monkeypatch: pytest.MonkeyPatch, launch_ms: float, **values: Any) -> dict[str, np.ndarray[Any, Any]]:
    real = devices.accelerator
    monkeypatch.setattr(
        devices, "accelerator", lambda name: Accelerator("test", 1 * MS, 0.0, "", launch_s=launch_ms * MS)
    )
    assert real("simulated:1,0").step_s == 1 * MS
    return trained(device="simulated:1,0", steps=80, warmup_steps=10, batch_size=20, evaluate=False, **values).steps


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("strategy", ["memory", "per-sample", "memory-ahead"])
def test_bubbles_are_told_from_kernels_however_the_batch_comes(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    steps = run(monkeypatch, 4.0, strategy=strategy)
    gated = np.isfinite(steps["kernel_s"])
    assert gated.sum() >= 3  # a host that others held up launched its last work after the gate
    assert set(steps["step"][gated]) <= set(range(10, 10 + GATED_STEPS))
    assert np.median(steps["kernel_s"][gated]) == pytest.approx(1 * MS, rel=0.05)
    assert steps["warmup"].sum() == 10 + GATED_STEPS + SETTLING_STEPS
    steady = steps["warmup"] == 0
    bubbles = steps["compute_s"][steady] - 1 * MS
    np.testing.assert_allclose(steps["launch_idle_s"][steady], bubbles, atol=0.05 * MS)
    late = steps["gap_s"][steady] - np.median(steps["gap_s"][steady])
    assert (bubbles + np.maximum(late, 0)).min() >= 2.9 * MS, "less only by as much as a batch came late"


@pytest.mark.usefixtures("small_home")
def test_a_device_that_is_slower_than_its_launches_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = run(monkeypatch, 0.0, strategy="memory")
    assert not np.isfinite(steps["kernel_s"]).any()
    assert steps["warmup"].sum() == 10
    assert (steps["launch_idle_s"][steps["warmup"] == 0] == 0).all()
