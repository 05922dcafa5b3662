"""Page-locked memory that the system refuses: PyTorch itself refuses it here, where there is no GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.engine.transfer_helpers import batch
from vitprof.config import RunConfig
from vitprof.config.catalog import DATASETS
from vitprof.config.resolve import resolve
from vitprof.engine import pipeline
from vitprof.engine.transfer import open_transfer
from vitprof.measure.devices import CpuDevice, Pinning

REFUSAL = "CUDA error: out of memory"


class Gpu(CpuDevice):
    """A CUDA device by its words only; its pinned memory is refused."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.told: list[str] = []
        self.torch_device = torch.device("cuda", 0)
        self.pinning = Pinning(wanted=True, tell=self.told.append)
        self.uploaded: list[torch.Tensor] = []

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        self.uploaded.append(tensor)
        return tensor


@pytest.fixture(autouse=True)
def _refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.empty

    def empty(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError(REFUSAL)
        return real(*args, **kwargs)  # type: ignore[no-any-return, call-overload]

    def pinned(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(REFUSAL)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)


def test_a_refusal_is_said_once_and_ordinary_memory_takes_its_place() -> None:
    device = Gpu()
    kept = torch.arange(3)
    assert device.pinning.empty((2, 3), torch.uint8).shape == (2, 3)
    assert device.pinning.pinned(kept) is kept
    assert device.pinning.empty((4,), torch.float32).dtype == torch.float32
    (line,) = device.told
    assert line.startswith(f"pinned memory: the system refused it (RuntimeError: {REFUSAL}); batches are copied ")
    assert "ulimit -l" in line


def test_a_batch_is_copied_as_it_is() -> None:
    device, made = Gpu(), batch()
    transfer = open_transfer("pinned", device, lambda images: images)
    assert transfer.stage is not None
    moved = transfer(transfer.stage(made))
    assert len(device.told) == 1
    assert torch.equal(moved.images, made.images)
    assert transfer.stage(made) is made  # no detour through a buffer that gains nothing
    assert transfer(made).images is made.images
    assert len(device.told) == 1


def test_a_dataloader_does_not_pin_then() -> None:
    device = Gpu()
    config = resolve(RunConfig(strategy="workers", pin_memory=True, steps=1))
    allowed = pipeline._pinned_if_allowed(config, DATASETS["digits"], device)
    assert (allowed.pin_memory, len(device.told)) == (False, 1)
    assert dataclasses.replace(allowed, pin_memory=True) == config


def test_nothing_is_pinned_where_there_is_no_gpu() -> None:
    told: list[str] = []
    pinning = Pinning(wanted=False, tell=told.append)
    assert pinning.empty((2,), torch.uint8).shape == (2,)
    assert (pinning.refused, told) == (False, [])
