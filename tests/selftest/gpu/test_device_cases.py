"""The cases on a device, their own code on the real `CudaDevice` over a stand-in for torch.cuda: right, and wrong."""

from __future__ import annotations

import json
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.cuda_stand_in import Card
from tests.engine_fixtures import small_home  # noqa: F401
from vitprof.engine.transfer.stream import PrefetchStream
from vitprof.errors import DataError, DeviceError
from vitprof.measure.devices import open_device
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.selftest.gpu import (
    GPU_CASES,
    Outcome,
    child,
    clock,
    copies,
    cost,
    decoding,
    deferred,
    launches,
)
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.child import run_case
from vitprof.selftest.gpu.profiler import union

HZ, TOLD_KHZ = 1.5e9, 2_000_000
"""Ticks of the multiprocessors, and what PyTorch is told: so waits must be calibrated."""
BYTES_PER_S = 12e9


@pytest.fixture
def card() -> Card:
    return Card(clock_khz=TOLD_KHZ, hz=HZ, tick_s=1e-6, copy_s=0.0, bytes_per_s=BYTES_PER_S)


@pytest.fixture
def device(card: Card, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    return card.device(monkeypatch)


@pytest.fixture
def bench(card: Card, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(copies, "IMAGES", (64, 32, 32, 3))
    monkeypatch.setattr(copies, "STREAMED", (16, 8, 8, 3))
    monkeypatch.setattr(copies, "BATCHES", 60)
    monkeypatch.setattr(clock, "MARKS", 300)
    return Bench(device, clock=card.clock, sleep=card.wait)


def test_a_wait_is_as_long_as_it_should_be_whatever_the_clock(bench: Bench, device: CudaDevice) -> None:
    assert device._clock_hz == 1e3 * TOLD_KHZ != HZ
    ask_s = bench.spin(0.003)
    assert ask_s == pytest.approx(0.003 * HZ / (1e3 * TOLD_KHZ), rel=1e-3)
    assert bench.timed(lambda: device.gate(ask_s)) == pytest.approx(0.003, rel=0.01)


def test_marks_lie_inside_their_brackets(bench: Bench) -> None:
    outcome = run_case("clock mapping", bench)
    assert outcome.status == "passed", outcome
    assert outcome.measured.startswith("300 of 300 inside")


@pytest.mark.parametrize(("drift", "wrong"), [(100e-6, "drift apart by +100"), (-3e-3, "marks lie outside")])
def test_a_clock_that_drifts_is_seen(
    drift: float, wrong: str, bench: Bench, card: Card, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.drift = drift
    monkeypatch.setattr(type(device._host), "to_host", lambda host, at, recorded, seen: at + host._offset_s)
    outcome = run_case("clock mapping", bench)
    assert outcome.status == "failed"
    assert wrong in outcome.reason


def test_copies_reach_the_bandwidth(bench: Bench) -> None:
    assert run_case("copies", bench).status == "passed"


def test_a_copy_that_takes_longer_than_it_should_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitprof.engine.transfer.copy import PinnedCopy

    plain = PinnedCopy.__call__

    def slower(transfer: PinnedCopy, batch: Any) -> Any:
        moved = plain(transfer, batch)
        bench.device.gate(moved.images.nbytes / BYTES_PER_S)
        return moved._replace(copy_end=bench.device.mark())

    monkeypatch.setattr(PinnedCopy, "__call__", slower)
    outcome = run_case("copies", bench)
    assert outcome.status == "failed"
    assert "of the bandwidth is reached" in outcome.reason


def test_prefetching_runs_beside_compute_and_tears_nothing(bench: Bench) -> None:
    outcome = run_case("prefetch", bench)
    assert outcome.status == "passed", outcome
    assert outcome.figures["torn"] == 0
    assert outcome.figures["hidden_frac"] > 0.9


def test_a_torn_batch_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PrefetchStream.__call__
    seen = 0

    def tears(transfer: PrefetchStream, batch: Any) -> Any:
        nonlocal seen
        moved = plain(transfer, batch)
        seen += 1
        if seen == 30:
            moved.images[3, 1, 2, 5] += 1
        return moved

    monkeypatch.setattr(PrefetchStream, "__call__", tears)
    outcome = run_case("prefetch", bench)
    assert outcome.status == "failed"
    assert "1 batches did not arrive as they were sent" in outcome.reason


def test_copies_in_the_stream_that_trains_are_not_beside_compute(
    bench: Bench, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda of: card.trains)
    outcome = run_case("prefetch", bench)
    assert outcome.status == "failed"
    assert "only 0% of the copying ran beside compute" in outcome.reason


@pytest.mark.parametrize(("util", "status"), [(50.0, "passed"), (90.0, "failed"), (math.nan, "not run")])
def test_gpu_util_is_compared_with_marks(util: float, status: str, bench: Bench) -> None:
    bench.utilisation = lambda: util
    outcome = run_case("GPU-util", bench)
    assert outcome.status == status, outcome
    if status != "not run":
        assert outcome.figures["busy_pct"] == pytest.approx(50, abs=1)


def test_without_nvml_it_says_so(bench: Bench) -> None:
    bench.no_utilisation = "NVML does not list this GPU"
    assert run_case("GPU-util", bench) == Outcome("not run", reason="NVML does not list this GPU")


@pytest.mark.usefixtures("small_home")
class TestLaunches:
    @pytest.fixture(autouse=True)
    def fewer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launches, "KERNELS", 30)

    def right(self, work: Any) -> float:
        work()
        return launches.KERNELS * launches.LONGER_S * launches.PROFILED_STEPS

    def test_tiny_kernels_are_called_launch_bound_and_their_time_is_found(self, bench: Bench) -> None:
        bench.kernels_s = self.right
        outcome = run_case("launch-bound", bench)
        assert outcome.status == "passed", outcome
        assert outcome.figures["kernel_ms"] == pytest.approx(30 * 0.04, rel=0.05)

    def test_another_figure_of_the_profiler_fails(self, bench: Bench) -> None:
        bench.kernels_s = lambda work: 0.9 * self.right(work)
        assert "kernel time is off by +1" in run_case("launch-bound", bench).reason

    def test_a_profiler_that_sees_nothing_is_told(self, bench: Bench) -> None:
        bench.kernels_s = lambda work: 0.0
        outcome = run_case("launch-bound", bench)
        assert outcome.status == "passed"
        assert "torch.profiler sees no kernels here" in outcome.measured

    @pytest.mark.slow
    def test_a_device_that_is_busy_is_not_launch_bound(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launches, "TINY_S", launches.TINY_EVERY_S)
        assert "were called not input-bound" in run_case("launch-bound", bench).reason


def test_the_union_of_kernels() -> None:
    assert union([(5, 7), (0, 2), (1, 3), (1.5, 1.7)]) == 5
    assert union([]) == 0


@pytest.mark.parametrize(("deferred_ms", "status"), [(20.3, "passed"), (24.0, "failed")])
def test_deferred_marks_are_compared_with_waiting(
    deferred_ms: float, status: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run", lambda *, device, trains, **settings: device)
    monkeypatch.setattr(deferred, "_compute_ms", lambda device: deferred_ms if device is bench.device else 20.0)
    outcome = run_case("compute-bound", bench)
    assert outcome.status == status
    assert outcome.figures["forced_ms"] == [20.0] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("small_home")
def test_both_ways_of_marking_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, with a model on the CPU."""
    monkeypatch.setattr(deferred, "ROUNDS", 1)
    monkeypatch.setattr(deferred, "JOB", deferred.JOB | {"warmup_steps": 1, "steps": 3})
    found = Bench(open_device("cpu", time.perf_counter), heavy={"batch_size": 16})
    outcome = run_case("compute-bound", found)
    assert len(outcome.figures["deferred_ms"]) == len(outcome.figures["forced_ms"]) == 1, outcome
    full = "CUDA out of memory. Tried to allocate 9 GiB"
    monkeypatch.setattr(found, "run", lambda **settings: (_ for _ in ()).throw(RuntimeError(full)))
    assert "needs more device memory" in run_case("compute-bound", found).reason


def test_forced_marks_wait_for_the_device(card: Card, device: CudaDevice) -> None:
    device.gate(0.01)
    plain, before = device.mark(), card.now
    assert not device.reached(plain)
    forced = deferred.Synchronising(device).mark()
    assert device.reached(forced)
    assert card.now >= before + 0.007


@pytest.mark.parametrize(("on_s", "status", "rounds"), [(1.001, "passed", 5), (1.05, "failed", 5)])
def test_the_cost_of_recording(
    on_s: float, status: str, rounds: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_recorded_s", lambda bench: on_s)
    monkeypatch.setattr(cost, "_plain_s", lambda bench: 1.0)
    outcome = run_case("own cost", bench)
    assert (outcome.status, len(outcome.figures["plain_step_ms"])) == (status, rounds)


@pytest.mark.usefixtures("small_home")
def test_both_loops_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, on a simulated device: it waits for each batch, so both take a step's time at least."""
    monkeypatch.setattr(cost, "STEPS", 6)
    monkeypatch.setattr(cost, "WARMUP_STEPS", 2)
    monkeypatch.setattr(cost, "JOB", cost.JOB | {"warmup_steps": 2})
    found = Bench(open_device("simulated:3,0", time.perf_counter))
    assert cost._recorded_s(found) >= 0.003
    assert cost._plain_s(found) >= 0.003


@pytest.mark.parametrize(
    ("kind", "cause", "status"),
    [("input-bound", "decode", "passed"), ("input-bound", "read", "failed"), ("not input-bound", "", "failed")],
)
def test_what_is_said_of_a_decoder_that_is_too_small(
    kind: str, cause: str, status: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "why_unavailable", lambda plan, info: "")
    verdict = SimpleNamespace(kind=kind, cause=cause, idle_frac=0.8)
    run = SimpleNamespace(verdict=lambda: verdict, steady=lambda column: 1.0, step_ms=5.0)
    monkeypatch.setattr(bench, "run", lambda **settings: run)
    assert run_case("undersized DALI", bench).status == status


def test_a_missing_dali_is_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitprof.config.availability.installed", lambda package: "dali" not in package)
    outcome = run_case("undersized DALI", bench)
    assert (outcome.status, "nvidia-dali" in outcome.reason) == ("not run", True)


def test_preflight_fails_where_doctor_does_or_a_kernel_is_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitprof.jobs import preflight

    room = preflight.Check("disk", "67 GiB free", "ok", "")
    monkeypatch.setattr(preflight, "examine", lambda: [room])  # doctor itself would ask a card that is not there
    found = run_case("preflight", bench)
    assert (found.status, found.measured) == ("passed", "1 checked, 0 bad")
    monkeypatch.setattr(preflight, "examine", lambda: [preflight.Check("disk", "full", "bad", "make room")])
    assert run_case("preflight", bench).reason == "disk: full; make room"


@pytest.mark.parametrize("error", [DataError("no room"), ZeroDivisionError("a bug")])
def test_a_case_that_raises_has_failed(error: Exception, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench) -> Outcome:
        raise error

    monkeypatch.setattr(copies, "copy_bandwidth", fails)
    outcome = run_case("copies", bench)
    assert outcome.status == "failed"
    assert str(error) in outcome.reason


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU .* sees none; `python -m vitprof doctor` says more"):
        child.open_bench("cuda:0")


def test_what_names_a_machine_is_not_told(bench: Bench) -> None:
    told = child.facts(bench)
    assert (told["device_name"], told["gpus"]) == ("stand-in", 1)
    assert not {"hostname", "gpu_uuid"} & set(told)


def test_every_case_has_a_function_and_outcomes_are_json() -> None:
    import importlib

    for case in GPU_CASES:
        module, _, function = case.run.partition(".")
        assert callable(getattr(importlib.import_module(f"vitprof.selftest.gpu.{module}"), function))
    outcome = Outcome("failed", "x", "y", {"a": math.nan, "b": (1, math.inf), "c": {"d": 2}})
    plain = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert plain["figures"] == {"a": None, "b": [1, None], "c": {"d": 2}}
    assert Outcome.from_dict(plain).status == "failed"
