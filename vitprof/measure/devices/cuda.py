"""A CUDA GPU as the device that trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from vitprof.errors import DeviceError
from vitprof.measure.devices import Clock, Pinning, Tell
from vitprof.measure.devices.cuda_checks import cuda_here, first_kernel, why_no_cuda
from vitprof.telemetry.visible import number_here, shown_here

SCALARS_UNDER_WAY = 1024
"""Most scalars on their way to the host at once; far more than the steps that CUDA lets a host run ahead."""
USUAL_CLOCK_KHZ = 2_000_000
"""Highest clock of the multiprocessors, assumed where PyTorch does not report it."""
RE_ANCHOR_S = 1.0
"""Age of the anchor from which on it is replaced. CUDA gives times between events as float32 milliseconds: exact to
0.06 us over 1 s, but only to 0.25 ms over an hour."""


class HostClock:
    """A map from times on a device's clock to the host's monotonic clock, both in seconds, over a long run.

    The two clocks drift apart, by some 10 us a second at worst. Every event bounds the offset between them: it cannot
    have happened before the host recorded it, nor after the host saw that it had happened. If a mapped time breaks one
    of these bounds, the offset moves by just as much as is needed. A starved device runs an event the moment it is
    recorded, so the bound is tight where idle time matters. (The idea is that of Cristian's clock synchronisation,
    1989.)
    """

    def __init__(self) -> None:
        self._offset_s = math.nan

    def set(self, device_s: float, host_s: float) -> None:
        """Sets the offset: `device_s` and `host_s` are the same moment on the two clocks."""
        self._offset_s = host_s - device_s

    def to_host(self, device_s: float, recorded_s: float, seen_s: float) -> float:
        """Returns the time on the host's clock of an event at `device_s` on the device's.

        The host recorded the event at `recorded_s`, and saw at `seen_s` that it had happened.
        """
        at = device_s + self._offset_s
        if at < recorded_s:
            self._offset_s += recorded_s - at
            return recorded_s
        if at > seen_s:
            self._offset_s -= at - seen_s
            return seen_s
        return at


class CudaStream:
    """A CUDA stream separate from the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def use(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def join(self, *tensors: Tensor) -> None:
        trains = torch.cuda.current_stream(self._device)
        trains.wait_stream(self._stream)
        for tensor in tensors:
            # The allocator must not reuse this memory in the copying stream while the training stream reads it.
            tensor.record_stream(trains)


class CudaDevice:
    """A CUDA GPU: marks are timing events in the current stream, mapped to the host's clock through an anchor."""

    immediate = False
    simulated = False

    def __init__(self, name: str, clock: Clock, tell: Tell = lambda line: None) -> None:
        index = number_here(name)
        if not cuda_here():
            finding = why_no_cuda()
            reason = finding.line if finding else f"this PyTorch ({torch.__version__}) sees no CUDA device; choose cpu"
            raise DeviceError(f"device {name}: {reason}")
        if index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise DeviceError(f"device {name}: there is no such GPU; choose cuda:0 to cuda:{last}, or cpu")
        self.name = name
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        if (finding := first_kernel(self.torch_device)) is not None:
            raise DeviceError(f"device {name}: {finding.line}")
        self.pinning = Pinning(wanted=True, tell=tell)
        self._free: list[torch.cuda.Event] = []
        self._slots = self.pinning.empty((SCALARS_UNDER_WAY,), torch.float32)
        self._next_slot = 0
        clock_khz = getattr(torch.cuda.get_device_properties(index), "clock_rate", 0)
        self._clock_hz = 1e3 * (clock_khz or USUAL_CLOCK_KHZ)
        self._clock = clock
        self._host = HostClock()
        self._anchor, host_s = self._find_anchor(clock)
        self._anchor_s = 0.0  # on the device's clock, which begins with the first anchor
        self._host.set(0.0, host_s)

    def _find_anchor(self, clock: Clock) -> tuple[torch.cuda.Event, float]:
        """Returns an event and the host's time of it.

        Of a few tries it takes the one with the shortest time between the clock readings around it, and their middle.
        """
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
        event.recorded_s = self._clock()  # type: ignore[attr-defined]
        event.record()
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def seconds(self, mark: torch.cuda.Event) -> float:
        since = float(self._anchor.elapsed_time(mark)) / 1e3
        device_s = self._anchor_s + since
        if since > RE_ANCHOR_S:  # the mark becomes the anchor: no waiting, and rounding does not grow with the run
            self._anchor, self._anchor_s = mark, device_s  # the old one is not reused: its step may still release it
        return self._host.to_host(device_s, mark.recorded_s, self._clock())  # type: ignore[attr-defined]

    def release(self, *marks: torch.cuda.Event) -> None:
        self._free.extend(mark for mark in marks if mark is not self._anchor)

    def gate(self, seconds: float) -> None:
        # a kernel that spins for a number of cycles: at a lower clock it takes longer
        torch.cuda._sleep(int(seconds * self._clock_hz))  # type: ignore[no-untyped-call]

    def upload(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        return tensor.to(self.torch_device, non_blocking=non_blocking)

    def stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def keep(self, value: Tensor) -> Callable[[], float]:
        slot = self._slots[self._next_slot]
        self._next_slot = (self._next_slot + 1) % SCALARS_UNDER_WAY
        slot.copy_(value.detach(), non_blocking=True)
        return slot.item

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_memory_bytes(self) -> float:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        held = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return float(free + held)

    def peak_memory(self) -> dict[str, float]:
        return {
            "gpu_mem_reserved_peak_bytes": float(torch.cuda.max_memory_reserved(self.torch_device)),
            "gpu_mem_allocated_peak_bytes": float(torch.cuda.max_memory_allocated(self.torch_device)),
        }

    def gauges(self) -> Callable[[], dict[str, float]] | None:
        return None

    def _uuid(self) -> str | None:
        """Returns the UUID as in NVML (for a slice of a GPU, that of the slice); None where it is unknown."""
        for gpu in shown_here():
            if gpu.index == self.torch_device.index and gpu.uuid:
                return gpu.uuid
        uuid = str(getattr(torch.cuda.get_device_properties(self.torch_device), "uuid", ""))
        return f"GPU-{uuid}" if uuid else None

    def environment(self) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(self.torch_device)
        return {
            "device_name": facts.name,
            "gpu_uuid": self._uuid(),
            "cuda_version": torch.version.cuda,
            "gpu_memory_bytes": facts.total_memory,
            "gpu_memory_free_bytes": self.free_memory_bytes(),
            "gpu_capability": f"{facts.major}.{facts.minor}",
        }


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
