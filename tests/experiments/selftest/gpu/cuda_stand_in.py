"""A stand-in for torch.cuda with a clock of its own: streams, events, waits and copies, as far as `CudaDevice` asks.

Tensors lie in the host's memory. The host's clock goes on by 1 us each time it is read, and over waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vitprof.engine.devices import cuda
from vitprof.engine.devices.cuda import CudaDevice

TICK_S = 1e-6
HZ = 1.5e9
"""Ticks of the multiprocessors: not what PyTorch is told, so that waits must be calibrated."""


class Gpu:
    """Host and device time; `drift` is by how much the device's clock is faster."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.drift = 0.0
        self.bytes_per_s = 12e9
        self.current = self.trains = Stream(self)
        self.streams = [self.trains]

    def clock(self) -> float:
        self.now += TICK_S
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.current.free_s = max(self.now, self.current.free_s) + seconds

    def synchronize(self, device: object = None) -> None:
        self.now = max(self.now, *(stream.free_s for stream in self.streams))


class Stream:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.free_s = gpu, 0.0

    def wait_stream(self, other: Stream) -> None:
        self.free_s = max(self.free_s, other.free_s)


class Event:
    recorded_s: float

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.now, self.gpu.current.free_s)

    def query(self) -> bool:
        return self.gpu.now >= self.at

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * (1 + self.gpu.drift) * 1e3


class StandIn(CudaDevice):
    """The real device on the stand-in; only copies are its own, for tensors do not move."""

    gpu: Gpu

    def upload(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        self.gpu.work(tensor.nbytes / self.gpu.bytes_per_s)
        if not non_blocking:
            self.gpu.synchronize()
        return tensor.clone()


def install(patch: pytest.MonkeyPatch) -> StandIn:
    """Puts the stand-in in place of torch.cuda; the device on it."""
    gpu = Gpu()

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        before, gpu.current = gpu.current, stream
        yield
        gpu.current = before

    def new_stream(device: object) -> Stream:
        gpu.streams.append(Stream(gpu))
        return gpu.streams[-1]

    def unpinned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
            return make(*args, **kwargs)

        return made

    properties = SimpleNamespace(name="stand-in", clock_rate=2e6, uuid="0", total_memory=1 << 34, major=9, minor=0)
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "reset_peak_memory_stats": lambda index: None,
        "max_memory_reserved": lambda device: 0,
        "max_memory_allocated": lambda device: 0,
        "memory_reserved": lambda device: 0,
        "memory_allocated": lambda device: 0,
        "mem_get_info": lambda device: (1 << 34, 1 << 34),
        "get_device_properties": lambda device: properties,
        "Event": lambda enable_timing: Event(gpu),
        "synchronize": gpu.synchronize,
        "_sleep": lambda cycles: gpu.work(cycles / HZ),
        "Stream": new_stream,
        "stream": within,
        "current_stream": lambda device: gpu.trains,
    }
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    for name in ("empty", "ones"):
        patch.setattr(torch, name, unpinned(getattr(torch, name)))
    patch.setattr(cuda, "first_kernel", lambda device: None)  # it runs whatever it is given
    patch.setattr(Tensor, "is_pinned", lambda tensor: True)
    patch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    device = StandIn("cuda:0", gpu.clock)
    device.gpu, device.torch_device = gpu, torch.device("cpu")
    return device
