"""Devices: marks that become times on the host's clock."""

import dataclasses
import platform
import time
from unittest.mock import Mock

import pytest
import torch

from tests.engine.transfer_helpers import batch, on_gpu
from tests.engine_fixtures import small_home, trained  # noqa: F401
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.datasets.catalog import DATASETS
from vitprof.engine import pipeline
from vitprof.engine.transfer import open_transfer
from vitprof.errors import DeviceError
from vitprof.measure.devices import CpuDevice, Pinning, open_device, system
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.measure.devices.cuda_findings import DeviceMemory, device_memory


def test_the_cpu_is_done_at_once() -> None:
    times = iter([1.5, 2.25])
    device = CpuDevice(lambda: next(times))
    first, second = device.mark(), device.mark()
    assert device.reached(first)
    assert (device.seconds(first), device.seconds(second)) == (1.5, 2.25)
    device.release(first, second)
    device.synchronize()
    value = torch.tensor(3.0)
    kept = device.keep(value, 0)
    value += 1
    assert kept() == 3.0
    assert (open_device("cpu", time.perf_counter).name, device.torch_device) == (
        "cpu",
        torch.device("cpu"),
    )
    assert device.environment()["device_name"]
    assert device.peak_memory() == {}  # the process's memory is telemetry's business


def test_where_torch_sees_no_gpu_or_not_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_device("auto", time.perf_counter).name == "cpu"
    with pytest.raises(DeviceError, match=r"^device cuda:1: .*sees no CUDA device; choose cpu$"):
        open_device("cuda:1", time.perf_counter)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        DeviceError, match=r"^device cuda:7: there is no such GPU; choose cuda:0 to cuda:1, or cpu$"
    ):
        open_device("cuda:7", time.perf_counter)


def test_memory_of_a_gpu_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the allocator keeps for later counts as free: a new tensor can have it."""
    figures = {
        "memory_reserved": 30,
        "memory_allocated": 20,
        "max_memory_reserved": 40,
        "max_memory_allocated": 25,
    }
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (50, 100))
    device = object.__new__(CudaDevice)
    device.torch_device = torch.device("cuda", 0)
    assert device.free_memory_bytes() == 60
    assert device.peak_memory() == {
        "gpu_mem_reserved_peak_bytes": 40,
        "gpu_mem_allocated_peak_bytes": 25,
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "H100")
    assert device_memory() == DeviceMemory("H100", total=100, free=50, allocated=25, reserved=30)


@on_gpu
@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("strategy", ["memory", "device", "workers"])
def test_training_on_a_gpu_gives_the_losses_of_the_cpu(strategy: str) -> None:
    """Batches, model and losses; what the marks measure is in tests/selftest/gpu/test_on_a_gpu.py."""
    with_it = trained(strategy=strategy, steps=20, evaluate=False, device="cuda:0")
    on_cpu = trained(strategy=strategy, steps=20, evaluate=False)
    assert with_it["loss"] == pytest.approx(on_cpu["loss"], abs=2e-3)
    assert (with_it["compute_s"] > 0).all()
    assert with_it["step_s"] == pytest.approx(with_it["gap_s"] + with_it["compute_s"], abs=1e-9)


REFUSAL = "CUDA error: out of memory"


class Gpu(CpuDevice):
    """A CUDA device by its words only; its pinned memory is refused."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.told: list[str] = []
        self.torch_device = torch.device("cuda", 0)
        self.pinning = Pinning(wanted=True, warn=self.told.append)

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        return tensor


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.empty

    def empty(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError(REFUSAL)
        return real(*args, **kwargs)  # type: ignore[no-any-return, call-overload]

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", Mock(side_effect=RuntimeError(REFUSAL)))


@pytest.mark.usefixtures("refused")
def test_a_refusal_is_said_once_and_ordinary_memory_takes_its_place() -> None:
    device, kept = Gpu(), torch.arange(3)
    assert device.pinning.empty((2, 3), torch.uint8).shape == (2, 3)
    assert device.pinning.pinned(kept) is kept
    assert device.pinning.empty((4,), torch.float32).dtype == torch.float32
    (line,) = device.told
    assert line.startswith(
        f"pinned memory: the system refused it (RuntimeError: {REFUSAL}); batches are copied "
    )
    assert "ulimit -l" in line
    without_gpu = Pinning(wanted=False, warn=device.told.append)  # nothing is pinned there
    assert without_gpu.empty((2,), torch.uint8).shape == (2,)
    assert (without_gpu.refusal, len(device.told)) == (None, 1)


@pytest.mark.usefixtures("refused")
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


@pytest.mark.usefixtures("refused")
def test_a_dataloader_does_not_pin_then() -> None:
    device = Gpu()
    config = resolve(RunConfig(strategy="workers", pin_memory=True, steps=1))
    allowed = pipeline._pinned_if_allowed(config, DATASETS["digits"], device)
    assert (allowed.pin_memory, len(device.told)) == (False, 1)
    assert dataclasses.replace(allowed, pin_memory=True) == config


def test_the_system_is_named_as_python_names_it() -> None:
    assert system() == platform.platform()
