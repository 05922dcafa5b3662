"""The Vision Transformer that jobs train (in einops, so that the patterns document the shapes), and
its training.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from vitprof.config import RunConfig
from vitprof.config.models import ModelPreset, is_foreign, model_preset
from vitprof.datasets.catalog import dataset_info
from vitprof.engine.foreign_models import open_foreign
from vitprof.engine.transfer import Moved, ToInput
from vitprof.measure.devices import Clock, Device, Mark
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.stopwatch import OffCpu


class Attention(nn.Module):
    """Multi-head self-attention with a LayerNorm before it: (b, n, dim) -> (b, n, dim)."""

    def __init__(self, *, dim: int, heads: int, dim_head: int, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(
            self.to_qkv(self.norm(x)), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.heads
        )
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        out: Tensor = self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))
        return out


class Block(nn.Module):
    """Pre-norm residual block: attention, then an MLP with GELU. (b, n, dim) -> (b, n, dim)."""

    def __init__(self, *, dim: int, heads: int, dim_head: int, mlp_dim: int, scale: float) -> None:
        super().__init__()
        self.attention = Attention(dim=dim, heads=heads, dim_head=dim_head, scale=scale)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.mlp(x)
        return out


class ViT(nn.Module):
    """A Vision Transformer: images (b, channels, image_size, image_size), float -> logits (b,
    classes).

    Attention logits are multiplied by `scale`: the article's model uses dim**-0.5, the usual value
    is dim_head**-0.5; `vitprof.config.catalog` states it for each preset. No dropout, so that a
    seed fixes the run. Raises `ValueError` if `patch_size` does not divide `image_size`.
    """

    def __init__(
        self, preset: ModelPreset, *, image_size: int, channels: int, classes: int
    ) -> None:
        super().__init__()
        patch_size = preset.patch_size
        dim = preset.dim
        mlp_dim = preset.mlp_dim
        if image_size % patch_size:
            raise ValueError(f"image_size {image_size} is not divisible by patch_size {patch_size}")
        self.to_patches = nn.Sequential(
            Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=patch_size, p2=patch_size),
            nn.Linear(channels * patch_size**2, dim),
        )
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        n_patches = (image_size // patch_size) ** 2
        self.positions = nn.Parameter(torch.randn(1, n_patches + 1, dim) * 0.02)
        shape: dict[str, Any] = {
            "dim": dim,
            "heads": preset.heads,
            "dim_head": preset.dim_head,
            "mlp_dim": mlp_dim,
            "scale": preset.scale,
        }
        self.blocks = nn.Sequential(*(Block(**shape) for _ in range(preset.depth)))
        if preset.head == "mlp":
            self.head = nn.Sequential(
                nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, classes)
            )
        else:
            self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_patches(images)
        token = repeat(self.class_token, "1 1 d -> b 1 d", b=len(x))
        x = self.blocks(torch.cat([token, x], dim=1) + self.positions)
        logits: Tensor = self.head(x[:, 0])
        return logits


AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""`RunConfig.precision` -> the type that autocast computes matrix products in.

tf32 is missing because it is not a type of its own: it is float32 with products of lower
precision."""


class Launched(NamedTuple):
    """A training step that was launched."""

    compute_start: Mark
    """Where its compute begins: usually where the batch is ready."""
    loss: Tensor | None = None
    """A scalar on the device; None if the trainer has none."""
    backward_start: Mark | None = None
    """Where its backward pass begins; None where that was not marked."""
    optimizer_start: Mark | None = None
    """Where its optimizer steps; None where that was not marked, or where it does not step."""


class Trainer(Protocol):
    """The training and evaluation of batches.

    `to_input` is None where a batch arrives ready for the model.
    """

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        """Launches one training step."""

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        """Launches the evaluation of one batch of the test set."""

    def evaluated(self) -> dict[str, float]:
        """Returns the results of all evaluations since the last call, for the run's record.

        Waits for the device.
        """

    def held_up_frac(self) -> float:
        """Returns the share of the launching of steps, since the last call, in which the thread was
        off the CPU.

        NaN where that is not known.
        """


PARTS_EVERY_S = 0.02
"""On a device that works later, the parts of a step are marked this often (s) at most.

Two more marks take 13 us there, with reading their times: 1% of a step of 1.3 ms, but 0.07% of this
time. As many steps as fit into a run of a few seconds tell the shares well enough."""


class PartMarks:
    """The marks inside a step, between its parts: of each step on the CPU, of some elsewhere."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._marked_s = -math.inf
        """When a step was last marked."""
        self._is_on = False
        self.backward_start: Mark | None = None
        self.optimizer_start: Mark | None = None

    def begin(self) -> None:
        """Begins a step, and decides whether it is marked."""
        self.backward_start = self.optimizer_start = None
        if self._device.immediate:
            # A mark is a reading of the clock.
            self._is_on = True
            return
        now_s = self._clock()
        self._is_on = now_s - self._marked_s >= PARTS_EVERY_S
        if self._is_on:
            self._marked_s = now_s

    def mark_backward(self) -> None:
        """Notes that the backward pass begins."""
        if self._is_on:
            self.backward_start = self._device.mark()

    def mark_optimizer(self, *_: Any) -> None:
        """Notes that the optimizer steps: a hook of its."""
        if self._is_on:
            self.optimizer_start = self._device.mark()


class TorchTrainer:
    """Training of a Vision Transformer with Adam and cross-entropy."""

    def __init__(self, config: RunConfig, device: Device, clock: Clock = time.perf_counter) -> None:
        info = dataset_info(config.dataset)
        preset = model_preset(config.model)
        image_size = config.image_size or preset.image_size
        shape = {"image_size": image_size, "channels": info.channels, "classes": info.classes}
        foreign = is_foreign(config.model)
        model = open_foreign(config.model, **shape) if foreign else ViT(preset, **shape)
        model.to(device.torch_device)
        self._device = device
        self._off_cpu = OffCpu()
        # On the CPU a call is the work itself: there is no launching to measure.
        self._launching = nullcontext() if device.immediate else self._off_cpu
        # "high" is TF32 on CUDA (PyTorch's notes on CUDA semantics).
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        self._autocast_to = AUTOCAST.get(config.precision)
        lr = config.lr or preset.lr
        fused = config.fused_optimizer or None
        self._optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=fused)
        # GradScaler calls it only where it steps: after an overflow it does not.
        self._parts = PartMarks(device, clock)
        self._optimizer.register_step_pre_hook(self._parts.mark_optimizer)
        # fp16's smallest number is 6e-8: gradients are scaled up, and a step that overflows is
        # skipped.
        self._scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=config.precision == "fp16"
        )
        self._model: Callable[[Tensor], Tensor] = model
        if config.compile:
            self._model = torch.compile(model, mode=config.compile_mode)
        self._start_evaluation()

    def _logits(self, batch: Moved, to_input: ToInput | None) -> Tensor:
        dtype = self._autocast_to
        kind = self._device.torch_device.type
        with nullcontext() if dtype is None else torch.autocast(kind, dtype=dtype):
            images = batch.images if to_input is None else to_input(batch.images)
            return self._model(images).float()

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        parts = self._parts
        parts.begin()
        with self._launching:
            self._optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self._logits(batch, to_input), batch.labels)
        scaled = self._scaler.scale(loss)
        parts.mark_backward()
        scaled.backward()  # type: ignore[no-untyped-call]  # launched by a thread of PyTorch's
        with self._launching:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return Launched(batch.ready, loss.detach(), parts.backward_start, parts.optimizer_start)

    @torch.no_grad()
    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        logits = self._logits(batch, to_input)
        self._loss += F.cross_entropy(logits, batch.labels, reduction="sum")
        self._hits += (logits.argmax(1) == batch.labels).sum()
        self._n += len(batch.labels)

    def _start_evaluation(self) -> None:
        device = self._device.torch_device
        self._n = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._hits = torch.zeros((), dtype=torch.int64, device=device)

    def evaluated(self) -> dict[str, float]:
        facts = {}
        if self._n:
            facts = {
                "test_loss": float(self._loss) / self._n,
                "test_accuracy": int(self._hits) / self._n,
            }
        self._start_evaluation()
        return facts

    def held_up_frac(self) -> float:
        frac = self._off_cpu.frac
        self._off_cpu.restart()
        return frac


class SimulatedTrainer:
    """Steps that only take time on a simulated device.

    There is no loss and no accuracy, and a step has no parts.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        # A mark made before the launch would count Python's delays as compute.
        return Launched(self._device.launch(len(batch.labels)))

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        self._device.launch(len(batch.labels), train=False)

    def evaluated(self) -> dict[str, float]:
        self._device.synchronize()
        return {}

    def held_up_frac(self) -> float:
        return math.nan


def open_trainer(config: RunConfig, device: Device) -> Trainer:
    """Returns the trainer for `device`.

    The weights are drawn from torch's generator in its present state.
    """
    if isinstance(device, SimulatedDevice):
        return SimulatedTrainer(device)
    return TorchTrainer(config, device)
