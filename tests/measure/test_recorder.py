"""The step recorder, above all with a device that finishes its work later."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.clock import Clock
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


def marks_of(**values: Any) -> StepMarks:
    """Marks with these values; every field has to be given, as the loop does."""
    marks = StepMarks()
    usual = {
        "outside_s": math.nan,
        "decoded": None,
        "prepared": None,
        "backward_start": None,
        "optimizer_start": None,
        "made": None,
        "epoch": 0,
        "warmup": False,
    }
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
        on_device |= {
            "loss": self.device.loss(10.0 - self.n) if compute and copied else devices.not_kept
        }
        here = {"step": self.n, "t_start": t_start, "t_got": t_got, "t_launched": t_got + 0.125}
        self.recorder.step(marks_of(**here, **on_device, samples=32, warmup=self.n < 1, made=made))
        self.n += 1

    def __getitem__(self, column: str) -> list[float]:
        return derive(gather(self.emitted))[column].tolist()


def test_marks_of_the_device_become_times() -> None:
    """What follows from them: test_step_columns.py."""
    # marks:                  resume, then copy start, copy end, compute end, reached; twice
    steps = Steps(LaterDevice([1.0, 1.5, 1.75, 2.75, 2.8, 3.0, 3.25, 4.25, 4.3]))
    steps.recorder.resume()
    steps.launch(t_start=1.125, t_got=1.375)
    made = BatchTimes(0.01, 0.02, 0.03, 0.04, 2.0, 2.75, 1.0, 3.0)
    steps.launch(t_start=2.5, t_got=3.0, made=made)  # asked for while the device still computed
    steps.device.synchronize()
    steps.recorder.resolve()
    names = ("previous_end", "copy_start", "copy_end", "compute_start", "compute_end", "loss")
    first, second = ([getattr(step, name) for name in names] for step in steps.emitted)
    assert (first, second) == (
        [1.0, 1.5, 1.75, 1.75, 2.75, 10.0],
        [2.75, 3.0, 3.25, 3.25, 4.25, 9.0],
    )
    of_host = [(step.t_start, step.t_got, step.warmup, step.made) for step in steps.emitted]
    assert of_host == [(1.125, 1.375, True, None), (2.5, 3.0, False, made)]
    for name in ("kernel_s", "launch_idle_s"):
        assert all(math.isnan(value) for value in steps[name])


def test_marks_inside_a_step_become_times_and_are_released() -> None:
    device = LaterDevice([1.0, 1.5, 1.75, 2.0, 2.5])
    steps = Steps(device)
    steps.recorder.resume()
    start, backward, optimizer, end = (device.mark() for _ in range(4))
    inside = {"backward_start": backward, "optimizer_start": optimizer}
    around = dict.fromkeys(("copy_start", "copy_end", "compute_start"), start)
    host = {"step": 0, "t_start": 1.0, "t_got": 1.25, "t_launched": 1.5}
    marks = marks_of(**host, **around, **inside, compute_end=end, loss=devices.not_kept)
    steps.recorder.step(marks)
    device.synchronize()
    steps.recorder.resolve()
    names = ("forward_compute_s", "backward_compute_s", "optimizer_compute_s", "compute_s")
    assert [steps[name] for name in names] == [[0.25], [0.25], [0.5], [1.0]]
    assert device.held == set()


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
    assert steps.device.marked == 4
    steps.launch(compute=False)
    assert steps.device.marked == 7
    steps.recorder.resolve()
    assert (steps.device.held, len(steps.emitted)) == (set(), 2)
    assert [math.isnan(loss) for loss in steps["loss"]] == [True, True]


def test_a_gap_counts_from_the_last_resume() -> None:
    steps = Steps(LaterDevice([0.0, 1.0, 1.0, 2.0, 2.0, 50.0, 50.5, 50.5, 51.0, 51.0]))
    steps.recorder.resume()
    steps.launch()
    steps.recorder.resume()  # an evaluation lay in between
    steps.launch()
    steps.recorder.resolve()
    assert (steps["gap_s"], steps["step_s"]) == ([1.0, 0.5], [2.0, 1.0])
    assert steps.device.held == set()


MS = 1e-3
PACED = (4 * MS, 0.02 * MS, 4.1 * MS)
"""Launches, lag, compute."""
AHEAD = (4 * MS, 6 * MS, 10 * MS)


def device_of(now: Clock, **values: float) -> SimulatedDevice:
    figures = {"step_s": 1 * MS, "sample_s": 0.0} | values
    return SimulatedDevice(
        "simulated:test", Accelerator("test", origin="", **figures), now, now.sleep
    )  # type: ignore[arg-type]


def asked(*seen: tuple[float, float, float], left: float = math.inf) -> LaunchProbe:
    probe = LaunchProbe(device_of(Clock()), 10)
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
        probe = LaunchProbe(device_of(Clock()), 10)
        for step in range(2):  # nor do first steps that load kernels say anything else
            probe.passed(step, 64, *PACED)
        assert (probe.ask(math.inf), probe.idle_s(64, 10 * MS)) == (0, 0)

    def test_a_host_that_paces_the_device_is_measured(self) -> None:
        probe = asked(*[AHEAD] * 2, *[PACED] * 8)
        assert (probe.gates_left, probe.steady_from) == (
            GATED_STEPS,
            10 + GATED_STEPS + SETTLING_STEPS,
        )
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
        for i in range(
            GATED_STEPS
        ):  # each waits for the device, as GradScaler does, or has 2,000 launches
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
            assert LaunchProbe(device_of(Clock()), warmup).asks_at == asks_at
        assert LaunchProbe(CpuDevice(Clock()), 10).asks_at == NEVER
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
    def test_short_kernels_wait_for_their_launches_but_behind_a_gate(
        self, launch_ms: float, took_ms: float
    ) -> None:
        now = Clock()
        device = device_of(now, launch_s=launch_ms * MS)
        start = device.launch(1)
        assert now.now == pytest.approx(launch_ms * MS)  # the host was busy
        assert device.mark() - start == pytest.approx(took_ms * MS)
        assert device.utilisation_pct() <= 100 * 1 * MS / (1 / 6) + 1e-9  # bubbles are no use
        behind_a_gate = device_of(Clock(), launch_s=launch_ms * MS)
        behind_a_gate.gate(6 * MS)
        assert behind_a_gate.launch(1) == pytest.approx(6 * MS)
        assert behind_a_gate.mark() == pytest.approx(7 * MS)


def run(
    monkeypatch: pytest.MonkeyPatch, launch_ms: float, **values: Any
) -> dict[str, np.ndarray[Any, Any]]:
    played = Accelerator("test", 1 * MS, 0.0, "", launch_s=launch_ms * MS)
    monkeypatch.setattr(devices, "accelerator", lambda name: played)
    return trained(
        device="simulated:1,0", steps=80, warmup_steps=10, batch_size=20, evaluate=False, **values
    ).steps


@pytest.mark.measured(before_others=True)
@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("strategy", ["memory", "memory-ahead"])
def test_bubbles_are_told_from_kernels_however_the_batch_comes(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
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
    assert (bubbles + np.maximum(late, 0)).min() >= 2.9 * MS, (
        "less only by as much as a batch came late"
    )


@pytest.mark.usefixtures("small_home")
def test_a_device_that_is_slower_than_its_launches_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = run(monkeypatch, 0.0, strategy="memory")
    assert not np.isfinite(steps["kernel_s"]).any()
    assert steps["warmup"].sum() == 10
    assert (steps["launch_idle_s"][steps["warmup"] == 0] == 0).all()
