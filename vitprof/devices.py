"""Devices behind one small protocol: mark a point in the device's work, ask later when it was passed.

A mark is cheap and never waits. On the CPU it is a reading of the clock; on CUDA it is an event recorded in the
current stream, resolved when the device has passed it. Nothing here synchronises inside a step: that would serialise
the overlap that prefetching exists to create (DESIGN.md section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from vitprof.errors import DeviceError

Clock = Callable[[], float]
Mark = Any
"""What `Device.mark` returns: a float on the CPU, a `torch.cuda.Event` on CUDA."""

RE_ANCHOR_S = 1.0
"""CUDA gives times between events as float32 milliseconds: exact to 0.06 us over 1 s, only to 0.25 ms over an hour."""


class Device(Protocol):
    """What the training loop needs to know about a device."""

    name: str
    torch_device: torch.device
    immediate: bool
    """Whether work is done when the call that launched it returns: a mark is then a time, and reached at once."""

    def mark(self) -> Mark:
        """A point after all work launched so far."""

    def reached(self, mark: Mark) -> bool:
        """Whether the device has passed `mark`. Never waits."""

    def seconds(self, mark: Mark) -> float:
        """When the device passed `mark`, on the host's monotonic clock. Only after `reached`."""

    def release(self, *marks: Mark) -> None:
        """These marks are not asked for again."""

    def keep(self, value: Tensor) -> Callable[[], float]:
        """Start to bring a scalar to the host without waiting; call the result once a later mark is reached."""

    def synchronize(self) -> None:
        """Wait until all work launched so far is done."""

    def peak_memory_bytes(self) -> float:
        """Most memory PyTorch's allocator held on the device since the job began; NaN where that means nothing."""

    def environment(self) -> dict[str, Any]:
        """Facts about the device for the run's record."""


class CpuDevice:
    """The CPU: work is done when the call returns, so a mark is the time."""

    immediate = True

    def __init__(self, clock: Clock) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")
        self.mark: Callable[[], float] = clock

    def reached(self, mark: float) -> bool:
        return True

    def seconds(self, mark: float) -> float:
        return mark

    def release(self, *marks: float) -> None:
        return

    def keep(self, value: Tensor) -> Callable[[], float]:
        kept = float(value)
        return lambda: kept

    def synchronize(self) -> None:
        return

    def peak_memory_bytes(self) -> float:
        return math.nan

    def environment(self) -> dict[str, Any]:
        return {"device_name": _cpu_name()}


class CudaDevice:
    """A CUDA GPU: marks are timing events in the current stream, mapped to the host's clock through an anchor."""

    immediate = False
    SLOTS = 1024
    """Scalars that can be on their way to the host at once; far more than CUDA lets a host run ahead."""

    def __init__(self, index: int, clock: Clock) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device cuda:{index}: this PyTorch ({torch.__version__}) sees no CUDA device; choose cpu"
            )
        if index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise DeviceError(f"device cuda:{index}: there is no such GPU; choose cuda:0 to cuda:{last}, or cpu")
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        torch.cuda.reset_peak_memory_stats(index)
        self._free: list[torch.cuda.Event] = []
        self._slots = torch.empty(self.SLOTS, dtype=torch.float32, pin_memory=True)
        self._next_slot = 0
        self._anchor, self._anchor_s = self._find_anchor(clock)

    def _find_anchor(self, clock: Clock) -> tuple[torch.cuda.Event, float]:
        """An event and the time it happened: the tightest of a few tries, with the middle of its bracket."""
        best: tuple[float, torch.cuda.Event, float] | None = None
        for _ in range(10):
            event = _timing_event()
            torch.cuda.synchronize()
            before = clock()
            event.record()
            event.synchronize()
            after = clock()
            if best is None or after - before < best[0]:
                best = (after - before, event, (before + after) / 2)
        assert best is not None
        return best[1], best[2]

    def mark(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else _timing_event()
        event.record()
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def seconds(self, mark: torch.cuda.Event) -> float:
        since = float(self._anchor.elapsed_time(mark)) / 1e3
        at = self._anchor_s + since
        if since > RE_ANCHOR_S:  # the mark becomes the anchor: no waiting, and no rounding that grows with the run
            self._anchor, self._anchor_s = mark, at  # the old one is not recycled: its step may still release it
        return at

    def release(self, *marks: torch.cuda.Event) -> None:
        self._free.extend(mark for mark in marks if mark is not self._anchor)

    def keep(self, value: Tensor) -> Callable[[], float]:
        slot = self._slots[self._next_slot]
        self._next_slot = (self._next_slot + 1) % self.SLOTS
        slot.copy_(value.detach(), non_blocking=True)
        return slot.item

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def peak_memory_bytes(self) -> float:
        return float(torch.cuda.max_memory_reserved(self.torch_device))

    def environment(self) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(self.torch_device)
        return {
            "device_name": facts.name,
            "gpu_uuid": str(getattr(facts, "uuid", "")) or None,
            "cuda_version": torch.version.cuda,
            "gpu_memory_bytes": facts.total_memory,
        }


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or platform.machine()


def open_device(name: str, clock: Clock) -> Device:
    """The device called `name`: "auto", "cpu" or "cuda:N". Raises `DeviceError` where it is not here."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    return CpuDevice(clock) if name == "cpu" else CudaDevice(int(name.removeprefix("cuda:")), clock)
