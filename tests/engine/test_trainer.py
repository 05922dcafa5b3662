"""Trainers: what is done with a batch that has arrived."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine_fixtures import trained
from vitprof.config import RunConfig
from vitprof.engine.trainer import SimulatedTrainer, TorchTrainer, open_trainer
from vitprof.engine.transfer.contract import Moved
from vitprof.measure.devices import CpuDevice, open_device


class Clock:
    """Stands still but for sleeps."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def batch(n: int) -> Moved:
    generator = torch.Generator().manual_seed(n)
    images = torch.rand((n, 1, 28, 28), generator=generator)
    return Moved(images, torch.arange(n) % 10, 0.0, 0.0, 0.0)


@pytest.mark.slow
def test_torch_trains_and_evaluates() -> None:
    torch.manual_seed(0)
    trainer = open_trainer(RunConfig(lr=0.003), CpuDevice(Clock()))
    assert isinstance(trainer, TorchTrainer)
    starts, losses = zip(*(trainer.step(batch(32), None) for _ in range(8)), strict=True)
    assert set(starts) == {0.0}  # where the batch is ready
    assert all(isinstance(loss, torch.Tensor) and not loss.requires_grad for loss in losses)
    assert float(losses[-1]) < float(losses[0])  # type: ignore[arg-type]
    for n in (20, 12):
        trainer.evaluate(batch(n), None)
    facts = trainer.evaluated()
    assert facts["test_accuracy"] * 32 == pytest.approx(round(facts["test_accuracy"] * 32))
    assert 0 < facts["test_loss"] < 10
    assert trainer.evaluated() == {}


def test_what_is_not_ready_goes_through_to_input() -> None:
    trainer = TorchTrainer(RunConfig(), CpuDevice(Clock()))
    seen: list[int] = []

    def to_input(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return images

    trainer.step(batch(3), to_input)
    trainer.evaluate(batch(2), to_input)
    assert seen == [3, 2]


def test_a_simulated_device_takes_the_time_and_gives_no_loss() -> None:
    device = open_device("simulated:30,1000000", Clock())
    trainer = open_trainer(RunConfig(), device)
    assert isinstance(trainer, SimulatedTrainer)
    assert trainer.step(batch(4), None) == (10.0, None)  # compute begins when it is launched, not at the batch's 0.0
    assert device.mark() == pytest.approx(14.03)
    trainer.evaluate(batch(2), None)
    assert device.mark() == pytest.approx(14.03 + 2.03 / 3)


@pytest.mark.usefixtures("small_home")
class TestARun:
    """The whole loop on a simulated device."""

    @pytest.mark.parametrize("values", [{}, {"transfer": "pinned"}, {"transfer": "stream"}, {"transfer": "resident"}])
    def test_compute_is_that_of_the_accelerator(self, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
        # a busy machine takes longer for it than the device has work queued, and gaps count from behind it
        monkeypatch.setattr("vitprof.engine.train.process_tree_cpu_s", lambda: 0.0)
        run = trained(device="simulated:4,10", strategy="memory", steps=12, batch_size=50, **values)
        assert len(run.marks) == 12
        # the device's own queue, so exactly that: not before the step before is done, nor before the batch is there;
        # before the first step it has no queue, and what prepares the batch waits for a host that may lack a CPU
        prepare_s = np.nan_to_num(run["device_prepare_s"])
        assert run["compute_s"] - prepare_s == pytest.approx(4.5e-3, abs=1e-9)
        assert prepare_s[1:] == pytest.approx(0, abs=1e-9)
        ends = run["compute_start_s"] + run["compute_s"]
        assert np.all(run["compute_start_s"][1:] >= ends[:-1] - 1e-9)
        assert np.allclose(run["gap_s"][1:], run["compute_start_s"][1:] - ends[:-1], atol=1e-9)
        assert all(math.isnan(loss) for loss in run["loss"])
        assert run.values["n_train"] == 600

    @pytest.mark.slow
    def test_it_runs_ahead_of_the_device(self) -> None:
        """Three steps can be queued, so the host asks for a batch before the step before it is done; no gap.

        Long steps: other programs may keep the host from its CPU for two of them.
        """
        run = trained(device="simulated:150,0", strategy="memory", transfer="pinned", steps=5, batch_size=50)
        ends = run["compute_start_s"] + run["compute_s"]
        assert np.all(run["t_start_s"][1:] < ends[:-1])
        assert np.all(run["exposed_wait_s"][1:] == 0)
        assert run.read_gauges[0]()["gpu_util_pct"] > 50

    def test_evaluation_leaves_no_accuracy(self) -> None:
        run = trained(device="simulated:1,0", strategy="memory", epochs=1, batch_size=300)
        assert "test_accuracy" not in run.values
        assert [name for name, _, _ in run.phases].count("evaluate") == 1

    def test_it_says_that_it_is_simulated(self) -> None:
        run = trained(device="simulated:1,0", strategy="memory", steps=2)
        assert run.environments[0]["simulated"] is True
        assert run.environments[0]["device"] == "simulated:1,0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [{"precision": "tf32"}, {"precision": "bf16"}, {"precision": "fp16"}, {"fused_optimizer": True}],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_each_precision_and_optimizer_learns_the_same(values: dict[str, Any]) -> None:
    def losses(config: RunConfig) -> list[float]:
        torch.manual_seed(0)
        trainer = TorchTrainer(config, CpuDevice(Clock()))
        return [float(loss) for _, loss in (trainer.step(batch(32), None) for _ in range(6)) if loss is not None]

    plain, other = losses(RunConfig(lr=0.003)), losses(RunConfig(lr=0.003, **values))
    assert other == pytest.approx(plain, abs=0.1)
    assert other[-1] < other[0]


def test_the_mode_of_compile_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: asked.append(mode) or model)
    TorchTrainer(RunConfig(compile=True, compile_mode="reduce-overhead"), CpuDevice(Clock()))
    TorchTrainer(RunConfig(compile=True), CpuDevice(Clock()))
    TorchTrainer(RunConfig(), CpuDevice(Clock()))
    assert asked == ["reduce-overhead", None]
