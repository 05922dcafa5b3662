"""Devices that are timed by events in their streams: CUDA, and what `torch.Event` times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from vitprof.measure.devices import Clock, Device, Pinning, Tell, not_kept

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
WAIT_TO_BE_READ = ("mps",)
"""Devices whose events make the host wait for all work when their times are read (PyTorch's
MPSEvent.mm)."""
CHECKED_S = 5e-3
"""How long (s) a device's events are compared with the host's clock before they are believed."""


class HostClock:
    """A map from times on a device's clock to the host's monotonic clock, both in seconds, over a
    long run.

    The two drift apart; 100 us a second are allowed for. An event cannot have happened before the
    host recorded it, nor after the host saw that it had: where a mapped time breaks one of these
    bounds, the offset moves by as much as is needed. (Cristian's clock synchronisation, 1989.)

    The lower bound is tight where a device is starved: it runs an event the moment it is recorded.
    The upper one is not, as events are looked at later, and a clock that is ahead would turn waits
    for data into work. So some marks are set while the stream is known to be idle, and happen at
    once.
    """

    def __init__(self, began_s: float) -> None:
        """`began_s` is the host's time at 0 on the device's clock."""
        self._offset_s = began_s

    def to_host(self, device_s: float, recorded_s: float, seen_s: float) -> float:
        """Returns the host's time of an event at `device_s`, recorded at `recorded_s` and passed by
        `seen_s`.
        """
        at = device_s + self._offset_s
        if at < recorded_s:
            self._offset_s += recorded_s - at
            return recorded_s
        if at > seen_s:
            self._offset_s -= at - seen_s
            return seen_s
        return at


class EventMark:
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

    def elapsed_time(self, later: EventMark) -> float:
        """Returns the milliseconds to a later mark, by the device's clock."""
        return float(self.event.elapsed_time(later.event))


class EventDevice(Device):
    """A device whose marks are timing events in the current stream, mapped to the host's clock
    through an anchor.

    It is timed by `torch.Event` and `torch.accelerator`, which no hardware but the null device has
    tried yet.
    """

    immediate = False

    def __init__(self, where: torch.device, clock: Clock, tell: Tell = lambda line: None) -> None:
        self.name = str(where)
        self.torch_device = where
        self.pinning = Pinning(wanted=True, tell=tell)
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
        self._anchor, host_s = self._find_anchor()
        self._anchor_s = 0.0
        """Time of the anchor on the device's clock, which begins with the first one."""
        self._host = HostClock(host_s)

    def new_event(self) -> Any:
        """Returns an event that takes the time."""
        return TimedEvent(self.torch_device)

    def current_stream(self) -> Any:
        """Returns the stream that this thread launches work in."""
        return torch.accelerator.current_stream(self.torch_device)

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
        mark = EventMark()  # there is no `__init__`, for speed
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

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.torch_device)

    def environment(self) -> dict[str, Any]:
        kind = self.torch_device.type
        return {"device_name": kind, "untested_device": kind}


class TimedEvent:
    """A `torch.Event` that takes the time."""

    __slots__ = ("event", "query", "record", "synchronize")

    def __init__(self, where: torch.device) -> None:
        self.event = torch.Event(where, enable_timing=True)
        self.query = self.event.query
        self.record = self.event.record
        self.synchronize = self.event.synchronize

    def elapsed_time(self, later: TimedEvent) -> float:
        return self.event.elapsed_time(later.event)


def open_by_events(where: torch.device, clock: Clock) -> EventDevice | None:
    """Returns the device, timed by `torch.Event`; None where that has no times, or others than the
    host's clock.
    """
    if where.type in WAIT_TO_BE_READ:
        return None
    try:
        device = EventDevice(where, clock)
        # Three tries: on a busy machine the host may be held up between the two events.
        agrees = any(_agrees(device) for _ in range(3))
    except Exception:
        # Whatever a backend raises that has no events, or none with times.
        return None
    # Without pinned memory, to keep a loss would wait.
    if not agrees or device.pinning.refusal:
        return None
    return device


def _agrees(device: EventDevice) -> bool:
    """Returns whether the time between two events is the host's, to a tenth."""
    first = device.mark()
    time.sleep(CHECKED_S)
    last = device.mark()
    passed_s = last.recorded_s - first.recorded_s
    device.synchronize()
    return bool(abs(first.elapsed_time(last) / 1e3 - passed_s) < 0.1 * passed_s)
