"""What the transfers' tests share: batches with every value that a byte can have, and devices."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vitprof.datasets.catalog import DATASETS
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.transforms import ToInput
from vitprof.measure.devices import CpuDevice, Device
from vitprof.measure.devices.cuda import CudaDevice

DIGITS = DATASETS["digits"]
CPU = torch.device("cpu")
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"
    ),
]


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """A test that needs a real GPU."""
    return gpu[0](gpu[1](test))  # type: ignore[no-any-return]


def cpu() -> CpuDevice:
    return CpuDevice(time.perf_counter)


def cuda() -> CudaDevice:
    return CudaDevice("cuda:0", time.perf_counter)


def pixels(n: int = 20) -> torch.Tensor:
    """Every value that a byte can have, and random ones. (n, 1, 28, 28) uint8."""
    values = np.random.default_rng(0).integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    values.reshape(-1)[:256] = np.arange(256)
    return torch.from_numpy(values)


def batch(n: int = 20) -> Batch:
    return Batch(pixels(n), torch.arange(n))


def to_input(device: Device) -> ToInput:
    return ToInput(DIGITS, "uint8", 28, device.torch_device)


def normalised(n: int = 20) -> torch.Tensor:
    return ToInput(DIGITS, "uint8", 28, CPU)(pixels(n))
