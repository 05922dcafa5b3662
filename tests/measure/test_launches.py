"""Steps that the host launches slower than the device runs them: seen, and their kernels measured by themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.cuda_stand_in import CLOCK_KHZ, COPY_S, Card
from tests.engine_fixtures import CHEAP, small_home, trained  # noqa: F401
from tests.gpu_defects import in_docs
from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.accelerators import Accelerator
from vitprof.config.resolve import resolve
from vitprof.engine.train import Budget
from vitprof.measure import devices
from vitprof.measure.devices import CpuDevice
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.recorder import GATED_STEPS, LEAST_LEFT, LEAST_WARMUP, NEVER, SETTLING_STEPS, LaunchProbe
from vitprof.recording.verdict import Verdict

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
    for step, figures in enumerate(seen):
        assert math.isnan(probe.passed(step, 64, *figures))
    probe.ask(left)
    return probe


class TestProbe:
    def test_a_host_that_is_ahead_leaves_no_bubbles(self) -> None:
        probe = asked(*[PACED] * 2, *[AHEAD] * 8)  # first launches load kernels
        assert (probe.gates_left, probe.steady_from) == (0, 10)
        assert probe.idle_s(64, 10 * MS) == 0

    def test_nothing_resolved_means_that_the_device_is_behind(self) -> None:
        assert asked().idle_s(64, 10 * MS) == 0

    def test_a_host_that_paces_the_device_is_measured(self) -> None:
        probe = asked(*[AHEAD] * 2, *[PACED] * 8)
        assert (probe.gates_left, probe.steady_from) == (GATED_STEPS, 10 + GATED_STEPS + SETTLING_STEPS)
        assert math.isnan(probe.idle_s(64, 4 * MS))
        for i in range(GATED_STEPS):
            assert probe.passed(10 + i, 64, 4 * MS, 1 * MS, (1 + i % 3) * MS) == (1 + i % 3) * MS
        for i in range(SETTLING_STEPS):
            assert math.isnan(probe.passed(10 + GATED_STEPS + i, 64, *PACED))
        assert probe.kernel_s == pytest.approx(2 * MS)
        assert probe.idle_s(64, 4 * MS) == pytest.approx(2 * MS)
        assert probe.idle_s(64, 1 * MS) == 0
        assert math.isnan(probe.idle_s(7, 1 * MS))  # of a smaller batch nobody knows

    def test_a_short_job_keeps_its_steps(self) -> None:
        probe = asked(*[PACED] * 8, left=LEAST_LEFT - 1)
        assert (probe.gates_left, probe.steady_from) == (0, 10)
        assert math.isnan(probe.idle_s(64, 4 * MS))

    @pytest.mark.parametrize("warmup", [0, LEAST_WARMUP - 1, LEAST_WARMUP])
    def test_without_a_warm_up_nobody_asks(self, warmup: int) -> None:
        assert (LaunchProbe(device_of(Now()), warmup).asks_at == NEVER) == (warmup < LEAST_WARMUP)

    def test_a_job_is_asked_unless_told_otherwise(self) -> None:
        assert LaunchProbe(device_of(Now()), RunConfig().warmup_steps).asks_at == RunConfig().warmup_steps

    def test_a_job_of_seconds_is_asked_if_it_will_have_steps_left(self) -> None:
        assert Budget(0, 20.0, began=100.0, done=5).steps_left(105.0) == 15
        assert Budget(80, math.inf, began=100.0, done=5).steps_left(105.0) == 75

    def test_a_first_step_of_seconds_makes_no_gate_of_seconds(self) -> None:
        probe = asked((2.0, 0.0, 2.0), *[PACED] * 4)
        device = probe._device
        assert isinstance(device, SimulatedDevice)
        probe.gate()
        assert device.mark() == pytest.approx(2 * PACED[0] + 100e-6)

    def test_nor_where_work_is_done_at_once(self) -> None:
        assert LaunchProbe(CpuDevice(Now()), 10).asks_at == NEVER


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
@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("strategy", ["memory", "per-sample", "memory-ahead"])
def test_bubbles_are_told_from_kernels_however_the_batch_comes(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    steps = run(monkeypatch, 4.0, strategy=strategy)
    gated = np.isfinite(steps["kernel_s"])
    assert steps["step"][gated].tolist() == list(range(10, 20))
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


TINY: dict[str, Any] = {"device": "cuda:0", "strategy": "memory", "transfer": "blocking", "steps": 80}
TINY |= {"warmup_steps": 10, "batch_size": 20, "evaluate": False}


@pytest.mark.usefixtures("small_home")
class TestCudaGate:
    """What CUDA is asked to do for a gate, by a stand-in for `torch.cuda`: 8 kernels of 0.125 ms, 0.5 ms to launch."""

    def steps(
        self, monkeypatch: pytest.MonkeyPatch, card: Card, *, host_s: float = 0.5 * MS, **config: Any
    ) -> dict[str, np.ndarray[Any, Any]]:
        asked = RunConfig(**(CHEAP | TINY | config))
        return card.train(monkeypatch, asked, launches=8, host_s=host_s, sample_s=0.125 * MS / 20).steps

    def test_the_gate_stands_between_the_copy_and_the_start_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        card = Card()
        steps = self.steps(monkeypatch, card)
        copied = ["mark", "copy", "copy", "mark"]
        computed = ["launch"] * 8 + ["mark", "mark"]
        plain = copied + computed
        host_s = 4 * MS + 2 * COPY_S + 0.125 * MS  # the launches; the copies, behind the last kernel of the step before
        cycles = int((2 * host_s + 100e-6) * 1e3 * CLOCK_KHZ)
        gated = [*copied, "synchronize", ("sleep", cycles), "mark", *computed]
        first = card.calls.index("copy") - 1
        expected = plain * 10 + gated * GATED_STEPS + plain * SETTLING_STEPS
        called = card.calls[first:]
        assert [c if isinstance(c, str) else c[0] for c in called[: len(expected)]] == [
            c if isinstance(c, str) else c[0] for c in expected
        ]
        waits = [c[1] for c in called if not isinstance(c, str)]
        assert waits == pytest.approx([cycles] * GATED_STEPS, abs=2)
        measured = np.isfinite(steps["kernel_s"])
        assert steps["step"][measured].tolist() == list(range(10, 20))
        np.testing.assert_allclose(steps["kernel_s"][measured], 1 * MS, rtol=1e-6)
        steady = steps["warmup"] == 0
        np.testing.assert_allclose(steps["compute_s"][steady], 4.125 * MS, rtol=1e-6)
        np.testing.assert_allclose(steps["launch_idle_s"][steady], 3.125 * MS, rtol=1e-6)

    def test_with_nothing_but_the_defaults_bubbles_are_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = self.steps(monkeypatch, Card(), warmup_steps=RunConfig().warmup_steps)
        np.testing.assert_allclose(steps["launch_idle_s"][steps["warmup"] == 0], 3.125 * MS, rtol=1e-6)

    def test_a_host_that_is_ahead_is_never_held_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        card = Card()
        steps = self.steps(monkeypatch, card, host_s=0.01 * MS)
        assert not [c for c in card.calls if not isinstance(c, str)]
        assert (steps["launch_idle_s"][steps["warmup"] == 0] == 0).all()

    def test_it_was_called_the_models_time_and_is_called_what_it_is(
        self, monkeypatch: pytest.MonkeyPatch, make_telemetry: Any
    ) -> None:
        """1 ms of kernels in 4 ms of launches: marks around the step alone see no idle time in it."""
        steps = self.steps(monkeypatch, Card())
        around_the_step = steps | {"launch_idle_s": np.full(len(steps["step"]), math.nan)}
        before, now = (
            judge(resolve(RunConfig(**TINY)), told, (), make_telemetry(), {"cuda_version": "13.0", "device": "cuda:0"})
            for told in (around_the_step, steps)
        )
        assert (before.kind, now.kind) == ("not input-bound", "launch-bound")
        assert "the time goes into the model" in before.sentence
        assert in_docs(before.sentence, now.sentence)

    def test_the_larger_batch_that_is_advised_gains_what_the_bubbles_cost(
        self, monkeypatch: pytest.MonkeyPatch, make_telemetry: Any
    ) -> None:
        def judged(config: RunConfig) -> tuple[Verdict, float]:
            asked = {name: getattr(config, name) for name in TINY}
            with monkeypatch.context() as patch:
                steps = self.steps(patch, Card(), **asked)
            steady = {name: values[steps["warmup"] == 0] for name, values in steps.items()}
            verdict = judge(config, steps, (), make_telemetry(), {"cuda_version": "13.0", "device": "cuda:0"})
            return verdict, steady["samples"].sum() / steady["step_s"].sum()

        asked = resolve(RunConfig(**TINY))
        found, rate = judged(asked)
        assert (found.kind, found.launch_frac) == ("launch-bound", pytest.approx(3.125 / 4.225, rel=1e-3))
        assert [dict(a.settings) for a in found.advice] == [
            {"batch_size": 40},
            {"compile": True, "compile_mode": "reduce-overhead"},
            {"fused_optimizer": True},
        ]
        for advice in found.advice:
            assert resolve(apply(asked, advice.settings))
        again, faster = judged(apply(asked, found.advice[0].settings))
        assert faster / rate == pytest.approx(2, rel=0.03), "the launches of a step cost what they did"
        assert again.launch_frac < found.launch_frac

    @pytest.mark.parametrize("clock_khz", [None, 0])
    def test_a_clock_rate_that_nobody_tells_is_taken_to_be_2_ghz(
        self, monkeypatch: pytest.MonkeyPatch, clock_khz: int | None
    ) -> None:
        card = Card(clock_khz=clock_khz)
        card.put_in(monkeypatch)
        CudaDevice("cuda:0", card.clock).gate(6 * MS)
        assert card.calls[-1] == ("sleep", 12_000_000)
