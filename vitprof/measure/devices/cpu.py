"""The CPU as the device that trains."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitprof.measure.devices import Clock, Pinning, Stream


class CpuDevice:
    """The CPU: work is done when the call returns, so a mark is the time."""

    immediate = True
    simulated = False

    def __init__(self, clock: Clock) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")
        self.pinning = Pinning(wanted=False)
        self.mark: Callable[[], float] = clock

    def reached(self, mark: float) -> bool:
        return True

    def wait(self, mark: float) -> None:
        return

    def seconds(self, mark: float) -> float:
        return mark

    def release(self, *marks: float) -> None:
        return

    def gate(self, seconds: float) -> None:
        return

    def upload(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        return tensor

    def stream(self) -> Stream | None:
        return None

    def keep(self, value: Tensor) -> Callable[[], float]:
        kept = float(value.item())
        return lambda: kept

    def synchronize(self) -> None:
        return

    def free_memory_bytes(self) -> float:
        return math.nan

    def peak_memory(self) -> dict[str, float]:
        return {}

    def gauges(self) -> Callable[[], dict[str, float]] | None:
        return None

    def environment(self) -> dict[str, Any]:
        return {"device_name": cpu_name()}


def cpu_name() -> str:
    """Returns the processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
