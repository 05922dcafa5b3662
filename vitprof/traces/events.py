"""What the events of a trace say of a training: spans of its threads, and the work of its device.

Of all events these matter: `ProfilerStep#`, `enumerate(DataLoader)#...__next__` and `Optimizer.step#`
of each thread, kernels, copies and fills of the device, and the calls that launched them. They are
found by category and name, in whatever order the file has them. Operators, Python's stack, shapes,
flows and counters are passed over.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.analysis.arrays import Floats, Ints, Mask

PROFILER_STEP = "ProfilerStep#"
"""An iteration, from one `profiler.step()` to the next one."""
FETCH = "enumerate(DataLoader)#"
"""A call of `__next__` of a DataLoader's iterator, also the last one of an epoch, which has no batch."""
UPDATE = "Optimizer.step#"
"""A step of an optimizer."""
SPANS = (PROFILER_STEP, FETCH, UPDATE)
LAUNCHING = ("launch", "memcpy", "memset")
"""What names of calls that give the device work have in them: cudaLaunchKernelExC, hipMemcpyAsync."""
TO_DEVICE = ("htod", "h2d", "hosttodevice", "m2d")
"""What names of copies to a device have in them: CUDA's, ROCm's, oneAPI's."""
LEGACY_LAUNCH = "cpu_to_"
"""How the category of arrows begins that `torch.autograd.profiler` draws to kernels without their times."""
PINNED = "pinned"
"""What the name of a copy from page-locked memory has in it: Memcpy HtoD (Pinned -> Device)."""


class Role(enum.Enum):
    """What events of a category are."""

    HOST = enum.auto()
    LAUNCH = enum.auto()
    KERNEL = enum.auto()
    COPY = enum.auto()
    FILL = enum.auto()
    OTHER = enum.auto()


class WorkKind(enum.IntEnum):
    """What a piece of the device's work is."""

    KERNEL = 0
    TO_DEVICE = 1
    FILL = 2
    OTHER_COPY = 3


def role_of(category: str) -> Role:
    """Returns what events of a category are, by the names of Kineto now and before 2022."""
    name = category.lower()
    if name == "kernel":
        return Role.KERNEL
    if name in ("gpu_memcpy", "memcpy"):
        return Role.COPY
    if name in ("gpu_memset", "memset"):
        return Role.FILL
    if name == "runtime" or name.endswith(("_runtime", "_driver")):
        return Role.LAUNCH
    # gpu_user_annotation repeats ProfilerStep# on the device's side.
    if name.startswith("gpu_") or name == "python_function":
        return Role.OTHER
    return Role.HOST


@dataclass(frozen=True, slots=True)
class HostSpan:
    """A span of a thread, in seconds since the trace's beginning."""

    start_s: float
    end_s: float
    label: str
    """What its name says after the sign #: the number of a step, the class of an iterator."""


@dataclass(slots=True)
class ThreadSpans:
    """The spans of a thread in their order, without those that lie in another one of their kind."""

    iterations: list[HostSpan] = field(default_factory=list)
    fetches: list[HostSpan] = field(default_factory=list)
    updates: list[HostSpan] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        """Returns when the last of them ended; -infinity without any."""
        every = (*self.iterations[-1:], *self.fetches[-1:], *self.updates[-1:])
        return max((span.end_s for span in every), default=-math.inf)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The pieces of a device's work in the order of their starts, (n,) each.

    Seconds since the trace's beginning. A piece whose launch is not in the trace counts as launched
    when it began.
    """

    start_s: Floats
    end_s: Floats
    launched_s: Floats
    """When the host began to launch it."""
    launch_end_s: Floats
    """When the host had launched it."""
    launch_is_known: Mask
    kind: Ints
    """`WorkKind`."""

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def known_launches_frac(self) -> float:
        """Returns for which share of the pieces the launch is in the trace; NaN without work."""
        return float(self.launch_is_known.mean()) if len(self) else math.nan


@dataclass(frozen=True, slots=True)
class TraceEvents:
    """What the events of a trace say of a training."""

    threads: dict[tuple[str, str], ThreadSpans]
    """Process and thread -> its spans."""
    work: DeviceWork
    """The work of the device that worked longest."""
    device: int | None
    """The number of that device; None where no device has worked."""
    other_devices: int
    """Devices that worked, too, in the same process."""
    origin_us: float
    """The trace's beginning, in its own microseconds."""
    seconds: float
    """From there to the end of what is known."""
    copies: int
    """Copies to the device."""
    pinned_copies: int
    """Those of them from page-locked memory."""
    untimed: int
    """Events that matter and have no time: they are left out."""
    launched_unseen: bool
    """Whether a device had work whose times are not in the trace."""


class EventCollector:
    """Takes the events of a trace one after the other.

    It keeps 33 bytes for each piece of device work and 24 for each launch, and nothing of other events.
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[str, str], ThreadSpans] = {}
        self._roles: dict[str, Role] = {}
        self._starts_us = array("d")
        self._ends_us = array("d")
        self._kinds = array("b")
        self._devices = array("q")
        self._correlations = array("q")
        self._launch_correlations = array("q")
        self._launches_us = array("d")
        self._launch_ends_us = array("d")
        self._first_us = math.inf
        self._last_us = -math.inf
        self._copies = 0
        self._pinned = 0
        self._untimed = 0
        self._launched_unseen = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes what matters of an event."""
        name = event.get("name")
        # "X" is a span with its length; others are instants, flows, counters and names of tracks.
        phase = event.get("ph")
        if phase != "X" or not isinstance(name, str):
            if phase == "s" and str(event.get("cat")).startswith(LEGACY_LAUNCH):
                self._launched_unseen = True
            return
        category = str(event.get("cat", ""))
        role = self._roles.get(category)
        if role is None:
            role = self._roles[category] = role_of(category)
        if role is Role.OTHER:
            return
        if role is Role.HOST:
            if name.startswith(SPANS):
                self._add_span(event, name)
        elif role is Role.LAUNCH:
            if _has(name, LAUNCHING):
                self._add_launch(event)
        else:
            self._add_work(event, name, role)

    def _add_span(self, event: Mapping[str, Any], name: str) -> None:
        times = self._times_us(event)
        if times is None:
            return
        thread = (str(event.get("pid")), str(event.get("tid")))
        spans = self._threads.setdefault(thread, ThreadSpans())
        kind, _, label = name.partition("#")
        span = HostSpan(*times, label)
        if kind == PROFILER_STEP[:-1]:
            spans.iterations.append(span)
        elif kind == FETCH[:-1]:
            spans.fetches.append(span)
        else:
            spans.updates.append(span)

    def _add_launch(self, event: Mapping[str, Any]) -> None:
        correlation = _correlation(event)
        if not correlation:
            return
        times = self._times_us(event)
        if times is None:
            return
        self._launch_correlations.append(correlation)
        self._launches_us.append(times[0])
        self._launch_ends_us.append(times[1])

    def _add_work(self, event: Mapping[str, Any], name: str, role: Role) -> None:
        times = self._times_us(event)
        if times is None:
            return
        kind = WorkKind.KERNEL if role is Role.KERNEL else WorkKind.FILL
        if role is Role.COPY:
            kind = WorkKind.TO_DEVICE if _has(name, TO_DEVICE) else WorkKind.OTHER_COPY
        if kind is WorkKind.TO_DEVICE:
            self._copies += 1
            if PINNED in name.lower().partition("->")[0]:
                self._pinned += 1
        self._starts_us.append(times[0])
        self._ends_us.append(times[1])
        self._kinds.append(kind)
        self._devices.append(_device(event))
        self._correlations.append(_correlation(event))

    def _times_us(self, event: Mapping[str, Any]) -> tuple[float, float] | None:
        """Returns when an event began and ended; None where it does not say so."""
        try:
            start_us = float(event["ts"])
            end_us = start_us + max(0.0, float(event.get("dur") or 0.0))
        except (KeyError, TypeError, ValueError):
            self._untimed += 1
            return None
        if not math.isfinite(end_us):
            self._untimed += 1
            return None
        self._first_us = min(self._first_us, start_us)
        self._last_us = max(self._last_us, end_us)
        return start_us, end_us

    def finish(self) -> TraceEvents:
        """Returns what all events said."""
        origin_us = self._first_us if math.isfinite(self._first_us) else 0.0
        threads = {}
        for thread, spans in self._threads.items():
            threads[thread] = ThreadSpans(
                iterations=_outermost(spans.iterations, origin_us),
                fetches=_outermost(spans.fetches, origin_us),
                updates=_outermost(spans.updates, origin_us),
            )
        device, other_devices = self._main_device()
        return TraceEvents(
            threads=threads,
            work=self._work_of(device, origin_us),
            device=device,
            other_devices=other_devices,
            origin_us=origin_us,
            seconds=(self._last_us - origin_us) / 1e6 if math.isfinite(self._last_us) else 0.0,
            copies=self._copies,
            pinned_copies=self._pinned,
            untimed=self._untimed,
            launched_unseen=self._launched_unseen,
        )

    def _main_device(self) -> tuple[int | None, int]:
        """Returns the device that worked longest, and how many others did."""
        if not len(self._starts_us):
            return None, 0
        devices = np.frombuffer(self._devices, dtype=np.int64)
        took_us = np.frombuffer(self._ends_us) - np.frombuffer(self._starts_us)
        busy_us = {
            device: float(took_us[devices == device].sum())
            for device in np.unique(devices).tolist()
        }
        longest = max(busy_us, key=lambda device: busy_us[device])
        return longest, len(busy_us) - 1

    def _work_of(self, device: int | None, origin_us: float) -> DeviceWork:
        if device is None:
            nothing = np.zeros(0)
            no_launch = np.zeros(0, dtype=bool)
            kinds = np.zeros(0, dtype=np.int64)
            return DeviceWork(nothing, nothing, nothing, nothing, no_launch, kinds)
        own = np.flatnonzero(np.frombuffer(self._devices, dtype=np.int64) == device)
        starts_us = np.frombuffer(self._starts_us)[own]
        own = own[np.argsort(starts_us, kind="stable")]
        start_s = _seconds(np.frombuffer(self._starts_us)[own], origin_us)
        at, is_known = self._launches_of(np.frombuffer(self._correlations, dtype=np.int64)[own])
        launched_s = start_s
        launch_end_s = start_s
        if is_known.any():
            launches_s = _seconds(np.frombuffer(self._launches_us), origin_us)
            launch_ends_s = _seconds(np.frombuffer(self._launch_ends_us), origin_us)
            launched_s = np.where(is_known, launches_s[at], start_s)
            launch_end_s = np.where(is_known, launch_ends_s[at], start_s)
        return DeviceWork(
            start_s=start_s,
            end_s=_seconds(np.frombuffer(self._ends_us)[own], origin_us),
            launched_s=launched_s,
            launch_end_s=launch_end_s,
            launch_is_known=is_known,
            kind=np.frombuffer(self._kinds, dtype=np.int8)[own].astype(np.int64),
        )

    def _launches_of(self, correlations: NDArray[np.int64]) -> tuple[Ints, Mask]:
        """Returns the position of the launch of each piece of work, and whether there is one.

        A launch and its work have the same number, also all kernels of a graph and its launch.
        """
        launches = np.frombuffer(self._launch_correlations, dtype=np.int64)
        if not len(launches):
            return np.zeros(len(correlations), dtype=np.int64), np.zeros(len(correlations), bool)
        order = np.argsort(launches, kind="stable")
        found = np.searchsorted(launches[order], correlations)
        at = order[np.minimum(found, len(launches) - 1)]
        return at, (launches[at] == correlations) & (correlations != 0)


def _has(name: str, parts: tuple[str, ...]) -> bool:
    lowered = name.lower()
    return any(part in lowered for part in parts)


def _seconds(times_us: Floats, origin_us: float) -> Floats:
    return np.asarray((times_us - origin_us) / 1e6)


def _outermost(spans: list[HostSpan], origin_us: float) -> list[HostSpan]:
    """Returns spans in seconds and in order, without those that lie within another one: of a Dataset
    that has a DataLoader of its own, or of an optimizer that wraps another."""
    kept = list[HostSpan]()
    for span in sorted(spans, key=lambda each: (each.start_s, -each.end_s)):
        start_s = (span.start_s - origin_us) / 1e6
        end_s = (span.end_s - origin_us) / 1e6
        # The profiler's steps touch, and may overlap by the nanosecond that was rounded away.
        if kept and end_s <= kept[-1].end_s:
            continue
        kept.append(HostSpan(start_s, end_s, span.label))
    return kept


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, Mapping) else {}


def _correlation(event: Mapping[str, Any]) -> int:
    """Returns the number that a launch and its work share; 0 where there is none."""
    return _whole(_arguments(event).get("correlation"), 0)


def _device(event: Mapping[str, Any]) -> int:
    """Returns the number of the device that worked; Kineto gives its process the same one."""
    return _whole(_arguments(event).get("device"), _whole(event.get("pid"), 0))


def _whole(value: object, otherwise: int) -> int:
    """Returns a whole number of at most 63 bits."""
    if isinstance(value, int | float | str):
        try:
            number = int(value)
        except (ValueError, OverflowError):
            return otherwise
        if -(1 << 63) <= number < 1 << 63:
            return number
    return otherwise
