"""Trains on a batch that has arrived, or evaluates it: with torch, or on a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitprof.config import RunConfig
from vitprof.config.catalog import dataset_info, model_preset
from vitprof.engine.model import AUTOCAST, ViT
from vitprof.engine.transfer.contract import Moved, ToInput
from vitprof.measure.devices import Device, Mark
from vitprof.measure.devices.simulated import SimulatedDevice


class Trainer(Protocol):
    """The training and evaluation of batches. `to_input` is None where a batch arrives ready for the model."""

    def step(self, batch: Moved, to_input: ToInput | None) -> tuple[Mark, Tensor | None]:
        """Launches one training step. Returns the mark where its compute begins, and its loss: a scalar on the device.

        Usually compute begins where the batch is ready; a trainer that knows better returns a mark of its own. The loss
        is None if the trainer has none.
        """

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        """Launches the evaluation of one batch of the test set."""

    def evaluated(self) -> dict[str, float]:
        """Returns the results of all evaluations since the last call, for the run's record. Waits for the device."""


class TorchTrainer:
    """Training of a Vision Transformer with Adam and cross-entropy."""

    def __init__(self, config: RunConfig, device: Device) -> None:
        info, preset = dataset_info(config.dataset), model_preset(config.model)
        image_size = config.image_size or preset.image_size
        model: nn.Module = ViT(preset, image_size=image_size, channels=info.channels, classes=info.classes)
        model.to(device.torch_device)
        self._device = device
        # "high" is TF32 on CUDA (PyTorch's notes on CUDA semantics)
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        self._autocast_to = AUTOCAST.get(config.precision)
        self._optimizer = torch.optim.Adam(
            model.parameters(), lr=config.lr or preset.lr, fused=config.fused_optimizer or None
        )
        # fp16's smallest number is 6e-8: gradients are scaled up, and a step that overflows is skipped
        scales = config.precision == "fp16"
        self._scaler = torch.amp.GradScaler(device.torch_device.type) if scales else None
        self._model: Callable[[Tensor], Tensor] = (
            torch.compile(model, mode=config.compile_mode) if config.compile else model
        )
        self._start_evaluation()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self._autocast_to
        return nullcontext() if dtype is None else torch.autocast(self._device.torch_device.type, dtype=dtype)

    def step(self, batch: Moved, to_input: ToInput | None) -> tuple[Mark, Tensor | None]:
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            logits = self._model(batch.images if to_input is None else to_input(batch.images))
        loss = F.cross_entropy(logits.float(), batch.labels)
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return batch.ready, loss.detach()

    @torch.no_grad()
    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        with self._autocast():
            logits = self._model(batch.images if to_input is None else to_input(batch.images))
        self._loss += F.cross_entropy(logits.float(), batch.labels, reduction="sum")
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
            facts = {"test_loss": float(self._loss) / self._n, "test_accuracy": int(self._hits) / self._n}
        self._start_evaluation()
        return facts


class SimulatedTrainer:
    """Steps that only take time on a simulated device. There is no loss and no accuracy."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def step(self, batch: Moved, to_input: ToInput | None) -> tuple[Mark, Tensor | None]:
        # a mark made before the launch would count Python's delays as compute
        return self._device.launch(len(batch.labels), normalise=to_input is not None), None

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        self._device.launch(len(batch.labels), train=False)

    def evaluated(self) -> dict[str, float]:
        self._device.synchronize()
        return {}


def open_trainer(config: RunConfig, device: Device) -> Trainer:
    """Returns the trainer for `device`. The weights are drawn from torch's generator in its present state."""
    return SimulatedTrainer(device) if isinstance(device, SimulatedDevice) else TorchTrainer(config, device)
