"""The ViT: its size, its shapes, its attention; and its training, in each precision."""

import itertools
import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.clock import Clock
from tests.engine_fixtures import trained
from vitprof.config import RunConfig
from vitprof.config.models import MODELS, model_preset
from vitprof.engine.trainer import (
    PARTS_EVERY_S,
    Attention,
    Launched,
    PartMarks,
    SimulatedTrainer,
    TorchTrainer,
    ViT,
    open_trainer,
)
from vitprof.engine.transfer import Moved
from vitprof.measure.devices import CpuDevice, open_device


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on busy cores wait for each other by spinning: 9 s of CPU for 8 steps were seen."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny() -> ViT:
    torch.manual_seed(0)
    return ViT(MODELS["tiny"], image_size=28, channels=1, classes=10)


def parameters(model: ViT) -> int:
    return sum(p.numel() for p in model.parameters())


def test_tiny_has_the_parameters_of_the_article() -> None:
    dim, mlp, inner, tokens = 64, 128, 8 * 8, 16 + 1  # as in the article
    patches = 7 * 7 * dim + dim
    attention = 2 * dim + dim * 3 * inner + inner * dim + dim
    block = attention + 2 * dim + dim * mlp + mlp + mlp * dim + dim
    head = dim * mlp + mlp + mlp * 10 + 10
    assert parameters(tiny()) == patches + dim + tokens * dim + 6 * block + head == 213_642


@pytest.mark.parametrize(
    ("name", "deit"),
    [("ti/16", 5_717_416), ("s/16", 22_050_664), ("b/16", 86_567_656)],  # timm's deit_*_patch16_224
)
def test_the_others_have_the_parameters_of_deit(name: str, deit: int) -> None:
    preset = model_preset(name)
    with torch.device("meta"):  # shapes only
        model = ViT(preset, image_size=224, channels=3, classes=1000)
        logits = model(torch.empty(2, 3, 224, 224))
    assert parameters(model) == deit - preset.depth * 3 * preset.dim  # q, k and v have no bias here
    assert logits.shape == (2, 1000)


def test_attention_is_softmax_with_the_stated_scale() -> None:
    preset, scale = MODELS["tiny"], 64**-0.5
    assert preset.scale == scale
    # tiny has the scale of the article
    assert all(
        m.scale == (m.dim if m.name == "tiny" else m.dim_head) ** -0.5 for m in MODELS.values()
    )
    assert preset.dim != preset.dim_head
    torch.manual_seed(1)
    heads, dim_head = preset.heads, preset.dim_head
    layer = Attention(dim=preset.dim, heads=heads, dim_head=dim_head, scale=preset.scale)
    x = torch.randn(2, 5, preset.dim)

    def plain(by: float) -> torch.Tensor:
        q, k, v = (
            layer.to_qkv(layer.norm(x)).reshape(2, 5, 3, heads, dim_head).permute(2, 0, 3, 1, 4)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) * by, dim=-1)
        return layer.to_out((weights @ v).transpose(1, 2).reshape(2, 5, heads * dim_head))

    assert torch.allclose(layer(x), plain(scale), atol=1e-5)
    assert not torch.allclose(
        layer(x), plain(2 * scale), atol=1e-3
    )  # the scale is not without effect


def test_every_parameter_learns_and_the_seed_decides_how_it_begins() -> None:
    model = tiny()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), tiny().parameters(), strict=True)
    )
    assert model(torch.randn(1, 1, 28, 28)).shape == (1, 10)
    model(torch.randn(4, 1, 28, 28)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_image_that_no_patch_grid_fits() -> None:
    with pytest.raises(ValueError, match="30 is not divisible by patch_size 7"):
        ViT(MODELS["tiny"], image_size=30, channels=1, classes=10)


def batch(n: int) -> Moved:
    generator = torch.Generator().manual_seed(n)
    images = torch.rand((n, 1, 28, 28), generator=generator)
    return Moved(images, torch.arange(n) % 10, 0.0, 0.0, 0.0)


def test_torch_trains_and_evaluates() -> None:
    torch.manual_seed(0)
    trainer = open_trainer(RunConfig(lr=0.003), CpuDevice(Clock(10.0)))
    assert isinstance(trainer, TorchTrainer)
    launched = [trainer.step(batch(32), None) for _ in range(8)]
    losses = [step.loss for step in launched]
    assert {step.compute_start for step in launched} == {0.0}  # where the batch is ready
    assert all(isinstance(loss, torch.Tensor) and not loss.requires_grad for loss in losses)
    assert float(losses[-1]) < float(losses[0])  # type: ignore[arg-type]
    for n in (20, 12):
        trainer.evaluate(batch(n), None)
    facts = trainer.evaluated()
    assert facts["test_accuracy"] * 32 == pytest.approx(round(facts["test_accuracy"] * 32))
    assert 0 < facts["test_loss"] < 10
    assert trainer.evaluated() == {}


def test_what_is_not_ready_goes_through_to_input() -> None:
    trainer, to_input = (
        TorchTrainer(RunConfig(), CpuDevice(Clock(10.0))),
        Mock(side_effect=torch.clone),
    )
    trainer.step(batch(3), to_input)
    trainer.evaluate(batch(2), to_input)
    assert [len(call.args[0]) for call in to_input.call_args_list] == [3, 2]


def test_a_simulated_device_takes_the_time_and_gives_no_loss() -> None:
    device = open_device("simulated:30,1000000", Clock(10.0))
    trainer = open_trainer(RunConfig(), device)
    assert isinstance(trainer, SimulatedTrainer)
    # compute begins when it is launched, not at the batch's 0.0
    assert trainer.step(batch(4), None) == Launched(10.0)
    assert device.mark() == pytest.approx(14.03)
    trainer.evaluate(batch(2), None)
    assert device.mark() == pytest.approx(14.03 + 2.03 / 3)


@pytest.mark.usefixtures("small_home")
class TestARun:
    """The whole loop on a simulated device."""

    @pytest.mark.parametrize(
        "values", [{}, {"transfer": "pinned"}, {"transfer": "stream"}, {"transfer": "resident"}]
    )
    def test_compute_is_that_of_the_accelerator(self, values: dict[str, Any]) -> None:
        run = trained(device="simulated:4,10", strategy="memory", steps=12, batch_size=50, **values)
        assert len(run.marks) == 12
        # the device's own queue, so exactly that: not before the step before is done, nor before the batch is there;
        # before the first step it has no queue, and what prepares the batch waits for a host that may lack a CPU
        prepare_s = np.nan_to_num(run["device_prepare_s"])
        # longer where the host is held up before it launches
        computed_s = np.sort(run["compute_s"] - prepare_s)
        assert computed_s[:10] == pytest.approx(4.5e-3, abs=1e-9)
        assert prepare_s[1:] == pytest.approx(0, abs=1e-9)
        ends = run["compute_start_s"] + run["compute_s"]
        assert np.all(run["compute_start_s"][1:] >= ends[:-1] - 1e-9)
        between_s = run["compute_start_s"][1:] - ends[:-1]
        # Before the first steady step the CPU meter starts: what that takes is no gap.
        first_steady = int(np.argmin(run["warmup"]))
        others = np.arange(1, 12) != first_steady
        assert run["gap_s"][1:][others] == pytest.approx(between_s[others], abs=1e-9)
        assert -1e-9 <= run["gap_s"][first_steady] <= between_s[first_steady - 1] + 1e-9
        assert all(math.isnan(loss) for loss in run["loss"])
        assert run.values["n_train"] == 600

    def test_it_runs_ahead_of_the_device(self) -> None:
        """Three steps can be queued, so the host asks for a batch before the step before it is done; no gap. Long
        steps: other programs may keep the host from its CPU for two of them."""
        run = trained(
            device="simulated:150,0", strategy="memory", transfer="pinned", steps=5, batch_size=50
        )
        ends = run["compute_start_s"] + run["compute_s"]
        assert np.all(run["t_start_s"][1:] < ends[:-1])
        assert np.all(run["exposed_wait_s"][1:] == 0)
        assert run.read_gauges[0]()["gpu_util_pct"] > 0

    def test_evaluation_leaves_no_accuracy_and_it_says_that_it_is_simulated(self) -> None:
        run = trained(device="simulated:1,0", strategy="memory", epochs=1, batch_size=300)
        assert "test_accuracy" not in run.values
        assert [name for name, _, _ in run.phases].count("evaluate") == 1
        assert run.environments[0]["simulated"] is True
        assert run.environments[0]["device"] == "simulated:1,0"


@pytest.mark.measured
@pytest.mark.parametrize("kind", ["tf32", "bf16", "fp16", "fused"])
def test_each_precision_and_optimizer_learns_the_same(kind: str) -> None:
    values: dict[str, Any] = {"fused_optimizer": True} if kind == "fused" else {"precision": kind}

    def losses(config: RunConfig) -> list[float]:
        torch.manual_seed(0)
        trainer = TorchTrainer(config, CpuDevice(Clock(10.0)))
        launched = [trainer.step(batch(32), None) for _ in range(6)]
        return [float(step.loss) for step in launched if step.loss is not None]

    plain, other = losses(RunConfig(lr=0.003)), losses(RunConfig(lr=0.003, **values))
    assert other == pytest.approx(plain, abs=0.1)
    assert other[-1] < other[0]


def test_each_step_on_the_cpu_is_marked_between_its_parts() -> None:
    ticks = itertools.count(10.0)
    trainer = TorchTrainer(RunConfig(), CpuDevice(lambda: next(ticks)))
    for at in (10.0, 12.0):
        launched = trainer.step(batch(4), None)
        assert (launched.backward_start, launched.optimizer_start) == (at, at + 1)


def test_a_step_that_the_scaler_skips_has_no_mark_of_the_optimizer() -> None:
    trainer = TorchTrainer(RunConfig(precision="fp16"), CpuDevice(Clock(10.0)))
    overflowing = batch(4)
    overflowing.images.fill_(math.inf)
    launched = trainer.step(overflowing, None)
    assert (launched.backward_start, launched.optimizer_start) == (10.0, None)


def test_a_device_that_works_later_is_marked_now_and_then() -> None:
    now = Clock(10.0)
    marks = PartMarks(open_device("simulated:1,0", now), now)
    marked = []
    for _ in range(9):
        marks.begin()
        marks.mark_backward()
        marks.mark_optimizer()
        marked.append((marks.backward_start is not None, marks.optimizer_start is not None))
        now.now += PARTS_EVERY_S / 4
    assert marked == [(at % 4 == 0, at % 4 == 0) for at in range(9)]


def test_the_mode_of_compile_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: asked.append(mode) or model)
    for knobs in ({"compile": True, "compile_mode": "reduce-overhead"}, {"compile": True}, {}):
        TorchTrainer(RunConfig(**knobs), CpuDevice(Clock(10.0)))
    assert asked == ["reduce-overhead", None]
