"""A CUDA GPU as the device that trains: timing events in its streams, mapped to the host's clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from vitprof.errors import DeviceError
from vitprof.measure.devices import Clock, Device, Pinning, Warn, not_kept
from vitprof.measure.devices.cuda_findings import cuda_here, first_kernel, why_no_cuda
from vitprof.measure.devices.host_clock import HostClock
from vitprof.telemetry.visible import number_here, shown_here

USUAL_CLOCK_KHZ = 2_000_000
"""Highest clock of the multiprocessors, assumed where PyTorch does not report it."""
SCALARS_UNDER_WAY = 1024
"""Most scalars on their way to the host at once; far more than the steps that CUDA lets a host run
ahead."""
EACH_LOSS_UNTIL = 64
"""Steps whose losses are all copied: by these, runs are compared."""
LOSS_EVERY_S = 0.02
"""After that, a loss is copied about as often (s): to launch the copy takes 5 us, and a step may
take 200."""
RE_ANCHOR_S = 1.0
"""Age of the anchor from which on it is replaced.

CUDA gives times between events as float32 milliseconds: exact to 0.06 us over 1 s, but only to 0.25
ms over an hour."""
IDLE_CHECK_S = 0.05
"""How often (s) a mark is asked for that the device runs at once, as it has nothing else to do."""
AT_ONCE_S = 20e-6
"""The longest time (s) that an idle device takes to run an event, from the end of the call that
recorded it."""


class CudaStream:
    """A CUDA stream separate from the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def use(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def join(self, *tensors: torch.Tensor) -> None:
        trains = torch.cuda.current_stream(self._device)
        trains.wait_stream(self._stream)
        for tensor in tensors:
            # The allocator must not reuse this memory in the copying stream while the training
            # stream reads it.
            tensor.record_stream(trains)


class CudaMark:
    """A point in a stream, where an event was recorded.

    A mark is handed out once. Its event, which takes long to make, is recorded again for other
    marks after the release. So whoever releases a mark twice takes nobody else's event away.
    """

    __slots__ = ("by_s", "event", "is_released", "recorded_s")

    event: Any
    recorded_s: float
    """When the host recorded it (s)."""
    by_s: float
    """When it has happened at the latest (s), where that is known before it is asked for."""
    is_released: bool

    def elapsed_time(self, later: CudaMark) -> float:
        """Returns the milliseconds to a later mark, by the device's clock."""
        return float(self.event.elapsed_time(later.event))


class CudaDevice(Device):
    """A CUDA GPU: marks are timing events in the current stream, mapped to the host's clock through
    an anchor.
    """

    immediate = False

    def __init__(
        self, name: str, clock: Clock, warn: Warn = lambda line: None, *, in_use: bool = False
    ) -> None:
        """`in_use`: a script trains on it already.

        It is neither tried nor made the current device, which is for the script to choose. Raises
        `DeviceError`.
        """
        self.name = name
        self.torch_device = _usable(name, in_use=in_use)
        self.pinning = Pinning(wanted=True, warn=warn)
        self._free: list[Any] = []
        """The events of released marks."""
        self.n_released_twice = 0
        """Marks that were released a second time: a defect of whoever uses them, without effect
        here."""
        self._slots = self.pinning.empty((SCALARS_UNDER_WAY,), torch.float32)
        self._next_slot = 0
        self._loss_every = 1
        """Copy the losses of steps that are a multiple of this, a power of two: runs have many of
        these in common."""
        self._loss_at = -1, 0.0
        """The last step whose loss was copied, and when (s)."""
        self._clock = clock
        self._checked_s = -math.inf
        self._work: Any = None
        self._next_anchor: tuple[Any, float] | None = None
        """The event that becomes the anchor, with its time on the device's clock.

        So nothing waits for a new anchor, and rounding does not grow with the run."""
        self._streams: dict[int, torch.cuda.Stream] = {}
        """Each stream that was current, by its handle."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        self._clock_hz = 1e3 * (getattr(properties, "clock_rate", 0) or USUAL_CLOCK_KHZ)
        self._anchor, host_s = self._find_anchor()
        self._anchor_s = 0.0
        """Time of the anchor on the device's clock, which begins with the first one."""
        self._host = HostClock(host_s)

    def new_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        """Returns this thread's current stream.

        PyTorch makes an object each time, which takes ten times as long as to record an event.
        """
        handle = torch._C._cuda_getCurrentRawStream(self.torch_device.index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self.torch_device)
        return stream

    def _find_anchor(self) -> tuple[Any, float]:
        """Returns an event and the host's time of it: of a few tries the one that was bracketed
        most closely.
        """
        tries = []
        for _ in range(10):
            event = self.new_event()
            self.synchronize()
            before = self._clock()
            event.record(self.current_stream())
            event.synchronize()
            tries.append((before, self._clock(), event))
        before, after, event = min(tries, key=lambda t: t[1] - t[0])
        return event, (before + after) / 2

    def follow(self) -> None:
        """Notes that a script works in the current stream: it may request batches in another one."""
        self._work = self.current_stream()

    def work_stream(self) -> Any:
        """Returns the stream of the last `follow`, else the current one."""
        return self._work or self.current_stream()

    def mark(self, stream: Any = None) -> Any:
        """Returns a point in `stream`, by default the one that the work goes to."""
        stream = stream or self.work_stream()
        event = self._free.pop() if self._free else self.new_event()
        mark = CudaMark()  # there is no `__init__`, for speed
        mark.event = event
        mark.is_released = False
        mark.recorded_s = self._clock()
        mark.by_s = math.inf
        if mark.recorded_s - self._checked_s < IDLE_CHECK_S:
            event.record(stream)
        else:
            self._checked_s = mark.recorded_s
            idle = stream.query()
            mark.recorded_s = self._clock()
            event.record(stream)
            if idle:
                mark.by_s = self._clock() + AT_ONCE_S
        return mark

    def reached(self, mark: Any) -> bool:
        return bool(mark.event.query())

    def wait(self, mark: Any) -> None:
        mark.event.synchronize()

    def seconds(self, mark: Any) -> float:
        since = float(self._anchor.elapsed_time(mark.event)) / 1e3
        if since > 2 * RE_ANCHOR_S and self._next_anchor is not None:
            # Its step has released it.
            self._anchor, self._anchor_s = self._next_anchor
            self._next_anchor = None
            since = float(self._anchor.elapsed_time(mark.event)) / 1e3
        device_s = self._anchor_s + since
        # It does not become the anchor now: a mark of another stream may be older.
        if since > RE_ANCHOR_S and self._next_anchor is None:
            self._next_anchor = mark.event, device_s
        return self._host.to_host(device_s, mark.recorded_s, min(mark.by_s, self._clock()))

    def release(self, *marks: Any) -> None:
        next_anchor = self._next_anchor[0] if self._next_anchor else None
        for mark in marks:
            if mark.is_released:
                self.n_released_twice += 1
                continue
            mark.is_released = True
            if mark.event is not self._anchor and mark.event is not next_anchor:
                self._free.append(mark.event)

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        return tensor.to(self.torch_device, non_blocking=non_blocking)

    def keep(self, value: torch.Tensor, step: int) -> Callable[[], float]:
        before, before_s = self._loss_at
        # A copy to memory that is not pinned would block.
        if (step & (self._loss_every - 1) and step != before) or self.pinning.refusal:
            return not_kept
        now = self._clock()
        # A step may have several losses: the first one decides.
        if step >= EACH_LOSS_UNTIL and step > before:
            step_s = max((now - before_s) / (step - before), 1e-6)
            self._loss_every = 1 << max(0, math.ceil(math.log2(LOSS_EVERY_S / step_s)))
        self._loss_at = step, now
        slot = self._slots[self._next_slot]
        self._next_slot = (self._next_slot + 1) % SCALARS_UNDER_WAY
        slot.copy_(value.detach(), non_blocking=True)
        return slot.item

    def gate(self, seconds: float) -> None:
        # A kernel that spins for a number of cycles: at a lower clock it takes longer.
        torch.cuda._sleep(int(seconds * self._clock_hz))  # type: ignore[no-untyped-call]

    def stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_memory_bytes(self) -> float:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        # New tensors can also take what PyTorch's allocator holds and no tensor uses.
        reserved = torch.cuda.memory_reserved(self.torch_device)
        unused = reserved - torch.cuda.memory_allocated(self.torch_device)
        return float(free + unused)

    def peak_memory(self) -> dict[str, float]:
        return {
            "gpu_mem_reserved_peak_bytes": float(torch.cuda.max_memory_reserved(self.torch_device)),
            "gpu_mem_allocated_peak_bytes": float(
                torch.cuda.max_memory_allocated(self.torch_device)
            ),
        }

    def environment(self) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(self.torch_device)
        environment = {
            "device_name": facts.name,
            "gpu_uuid": _uuid(self.torch_device),
            "cuda_version": torch.version.cuda,
            "gpu_memory_bytes": facts.total_memory,
            "gpu_memory_free_bytes": self.free_memory_bytes(),
            "gpu_capability": f"{facts.major}.{facts.minor}",
        }
        if torch.version.hip is not None:
            environment["untested_device"] = "ROCm"
        return environment


def _usable(name: str, *, in_use: bool) -> torch.device:
    """Returns the GPU called `name`, which was tried unless it is `in_use`. Raises `DeviceError`."""
    index = number_here(name)
    # A script may train by ROCm, which has the same events; vitprof's own jobs do not.
    if not (cuda_here() or (in_use and torch.cuda.is_available())):
        reason = f"this PyTorch ({torch.__version__}) sees no CUDA device; choose cpu"
        finding = why_no_cuda()
        if finding:
            reason = finding.line
        raise DeviceError(f"device {name}: {reason}")
    if index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise DeviceError(
            f"device {name}: there is no such GPU; choose cuda:0 to cuda:{last}, or cpu"
        )
    where = torch.device("cuda", index)
    if not in_use:
        finding = first_kernel(where)
        if finding is not None:
            raise DeviceError(f"device {name}: {finding.line}")
    return where


def _uuid(device: torch.device) -> str | None:
    """Returns the UUID as in NVML (for a slice of a GPU, that of the slice); None where it is
    unknown, and for ROCm, whose GPUs NVML does not know.
    """
    if torch.version.hip is not None:
        return None
    for gpu in shown_here():
        if gpu.index == device.index and gpu.uuid:
            return gpu.uuid
    facts: Any = torch.cuda.get_device_properties(device)
    uuid = str(getattr(facts, "uuid", ""))
    return f"GPU-{uuid}" if uuid else None
