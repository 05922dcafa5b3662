"""The cases on a device, their own code on the real `CudaDevice` over a stand-in for torch.cuda: right, and wrong."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cuda_stand_in import Card
from tests.engine_fixtures import small_home  # noqa: F401
from vitprof.errors import DataError, DeviceError
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.selftest.gpu import device_cases, driver
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.driver import GPU_CASES, run_case
from vitprof.selftest.report import Outcome, plain

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
    monkeypatch.setattr(device_cases, "IMAGES", (64, 32, 32, 3))
    monkeypatch.setattr(device_cases, "MARKS", 300)
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


@pytest.mark.parametrize(("drift", "wrong"), [(150e-6, "drift apart by +150"), (-3e-3, "marks are outside")])
def test_a_clock_that_drifts_is_seen(
    drift: float, wrong: str, bench: Bench, card: Card, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.drift = drift
    monkeypatch.setattr(type(device._host), "to_host", lambda host, at, recorded, seen: at + host._offset_s)
    outcome = run_case("clock mapping", bench)
    assert outcome.status == "failed"
    assert wrong in outcome.wrong


@pytest.mark.parametrize("drift", [90e-6, -90e-6])
def test_a_clock_that_drifts_less_is_followed(drift: float, bench: Bench, card: Card) -> None:
    card.drift = drift
    outcome = run_case("clock mapping", bench)
    assert outcome.status == "passed", outcome
    assert f"drift {drift * 1e6:+.1f}" in outcome.measured


def test_copies_reach_the_bandwidth_or_fail(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitprof.engine.transfer import PinnedCopy

    assert run_case("copies", bench).status == "passed"
    plain = PinnedCopy.__call__

    def slower(transfer: PinnedCopy, batch: Any) -> Any:
        moved = plain(transfer, batch)
        bench.device.gate(moved.images.nbytes / BYTES_PER_S)
        return moved._replace(copy_end=bench.device.mark())

    monkeypatch.setattr(PinnedCopy, "__call__", slower)
    outcome = run_case("copies", bench)
    assert outcome.status == "failed"
    assert "of the bandwidth is reached" in outcome.wrong


@pytest.mark.usefixtures("small_home")
class TestLaunches:
    @pytest.fixture(autouse=True)
    def fewer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_cases, "KERNELS", 30)

    def right(self, work: Any) -> float:
        work()
        return device_cases.KERNELS * device_cases.LONGER_S * device_cases.PROFILED_STEPS

    def test_tiny_kernels_are_called_launch_bound_and_their_time_is_found(self, bench: Bench) -> None:
        bench.kernels_s = self.right
        outcome = run_case("launch-bound", bench)
        assert outcome.status == "passed", outcome
        assert outcome.figures["kernel_ms"] == pytest.approx(30 * 0.04, rel=0.05)

    def test_another_figure_of_the_profiler_fails_and_one_that_sees_nothing_is_told(self, bench: Bench) -> None:
        bench.kernels_s = lambda work: 0.9 * self.right(work)
        assert "kernel time is off by +1" in run_case("launch-bound", bench).wrong
        bench.kernels_s = lambda work: 0.0
        outcome = run_case("launch-bound", bench)
        assert outcome.status == "passed"
        assert "torch.profiler sees no kernels here" in outcome.measured

    @pytest.mark.slow
    def test_a_device_that_is_busy_is_not_launch_bound(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_cases, "TINY_S", device_cases.TINY_EVERY_S)
        assert "were called not input-bound" in run_case("launch-bound", bench).wrong


def test_the_union_of_kernels() -> None:
    assert (device_cases.union([(5, 7), (0, 2), (1, 3), (1.5, 1.7)]), device_cases.union([])) == (5, 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DataError("no room"), "failed"),
        (ZeroDivisionError("a bug"), "failed"),
        (DeviceError("CUDA out of memory on stand-in: it asked for 2 GiB more; try batch size 64"), "not run"),
    ],
)
def test_a_case_that_raises(error: Exception, status: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench) -> Outcome:
        raise error

    monkeypatch.setitem(GPU_CASES, "copies", dataclasses.replace(GPU_CASES["copies"], run=fails))
    outcome = run_case("copies", bench)
    assert outcome.status == status
    assert str(error) in outcome.wrong


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU .* sees none; `python -m vitprof doctor` says more"):
        driver.open_bench("cuda:0", Path())


def test_facts_do_not_name_a_machine_and_outcomes_are_json(bench: Bench) -> None:
    facts = driver.device_facts(bench)
    assert (facts["device_name"], facts["gpus"]) == ("stand-in", 1)
    assert not {"hostname", "gpu_uuid"} & set(facts)
    outcome = Outcome("failed", "x", "y", {"a": math.nan, "b": (1, math.inf), "c": {"d": 2}})
    message = json.loads(json.dumps(plain(outcome.to_dict()), allow_nan=False))
    assert message["figures"] == {"a": None, "b": [1, None], "c": {"d": 2}}
    assert Outcome(**message).status == "failed"
