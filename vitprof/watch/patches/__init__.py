"""The hooks in a watched process: a file for each thing that is patched.

Each has `install(recorder)`, which returns what takes the patches back. A hook records an event and
lets the script's call go on; it decides nothing. Where a hook itself fails, all of them stop
recording, and the script goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from vitprof.watch.events import Buffer, Description
from vitprof.watch.script_objects import ByIdentity

MARK = "_vitprof_original"
"""Attribute of a replacement: what it replaces."""


@dataclass(slots=True)
class Numbered:
    """The object that was asked for last: nearly always it is the only optimizer, once in each step. To
    look it up among all takes three times as long."""

    object: Callable[[], Any]
    """Returns it, if it is still there."""
    number: int


_NOTHING = Numbered(object, 0)
"""Is no object of a script: each call returns another one."""


class DeviceMarks(Protocol):
    """Marks points in the work of the device that trains, at what hooks see.

    Each call comes from any thread, and marks nothing where that is not the one that trains on the
    device, or while it captures a graph: a mark would become part of that.
    """

    def before_begin(self) -> None:
        """Marks that an iteration over a loader is about to begin: its first wait includes that."""

    def before_request(self) -> None:
        """Marks a request for a batch; before its event, so that no wait has what it costs."""

    def received(self, batch: Any) -> None:
        """Marks that a batch came, and notes its tensors: copies of them are marked."""

    def waited(self) -> None:
        """Marks that a wait is over: without a batch, or later than that came."""

    def before_taking(self) -> None:
        """Marks that something is taken from a queue, unless a batch is requested already."""

    def took(self, taken: Any) -> None:
        """Marks that a batch came out of a queue, unless it is one that was requested."""

    def backward(self, loss: Any) -> None:
        """Marks a backward pass, and keeps the loss where it is one of a single number."""

    def stepping(self) -> None:
        """Marks where an optimizer begins to step."""

    def differentiated(self) -> None:
        """Marks that again after a backward pass within its step."""

    def stepped(self) -> None:
        """Marks a step of an optimizer."""

    def entered(self) -> None:
        """Marks that the script enters a step that it marks."""

    def left(self) -> None:
        """Marks that it leaves one."""

    def awaiting(self) -> None:
        """Marks that it begins to send to other ranks what the work waits for."""

    def awaited(self) -> None:
        """Marks that this is launched."""

    def finish(self) -> None:
        """Waits until the device has passed all marks, at the script's end."""


class Looks(Protocol):
    """Looks at some steps: what the script does with a batch before its model."""

    def received(self, now_s: float) -> None:
        """Looks at the step of a batch that has come, if it is time for one."""

    def requested(self) -> None:
        """Notes a request for a batch."""

    def backward(self) -> None:
        """Notes a backward pass."""

    def stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer."""


class Recorder:
    """What all hooks share: where events go, the numbers of objects, and the marks of a device."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.emit = buffer.emit
        self._numbers = ByIdentity[int]()
        self._last_numbered = _NOTHING
        self._next_number = itertools.count(1)
        self._devices: dict[Any, int] = {}
        self.cpu = 0
        """The number of the CPU as a device; 0 while it has none."""
        self._numbering = threading.Lock()
        self.optimizers_step = False
        """Whether any optimizer of PyTorch's has stepped."""
        self.failed: Exception | None = None
        """The error of a hook, after which none records."""
        self.marks: DeviceMarks | None = None
        """Of the device that trains, once that is known; None for the CPU, and a device that is not
        timed."""
        self.begin_marks: Callable[[Any], None] = _drop
        """Begins to mark the work of a `torch.device`, which the script has used: a loss or a
        parameter is on it."""
        self.count: Callable[[float], None] | None = None
        """Records how many collectives were begun by that time; None where the process trains alone."""
        self.looks: Looks | None = None
        """None before the first work."""
        self.on_first_work: list[Callable[[], None]] = []
        """Called once, at the first backward pass or optimizer's step, in its thread."""
        self._ended_marks: list[DeviceMarks] = []
        """Kept: in a forked process their events are the parent's, and to free them there would end
        the process."""

    def number(self, of: Any, kind: str, facts: Callable[[], dict[str, Any]] = dict) -> int:
        """Returns the number of an object; describes it, by `facts`, where it is new."""
        last = self._last_numbered
        if last.object() is of:
            return last.number
        known = self._numbers.get(of)
        if known is not None:
            self._last_numbered = Numbered(weakref.ref(of), known)
            return known
        with self._numbering:
            number = next(self._next_number)
            # What refuses a weak reference has another number each time.
            with contextlib.suppress(TypeError):
                self._numbers[of] = number
        self.buffer.describe(Description(number, kind, facts()))
        return number

    def device(self, device: Any) -> int:
        """Returns the number of a `torch.device`."""
        number = self._devices.get(device)
        if number is None:
            with self._numbering:
                number = next(self._next_number)
                self._devices[device] = number
            if device.type == "cpu":
                self.cpu = number
            self.buffer.describe(Description(number, "device", {"name": str(device)}))
        return number

    def forget_numbers(self) -> None:
        """Describes all objects anew, with other numbers, as for another process."""
        self._numbers = ByIdentity[int]()
        self._last_numbered = _NOTHING
        self._devices.clear()
        self.cpu = 0
        self.end_marks()

    # What else is noted at what hooks see. Where a process trains alone on the CPU that is nothing but
    # steps that are looked at.

    def before_begin(self) -> None:
        """Notes that an iteration over a loader is about to begin."""
        if self.marks is not None:
            self.marks.before_begin()

    def before_request(self) -> None:
        """Notes that a batch is about to be requested: before the event, so that no wait has what it
        costs."""
        if self.marks is not None:
            self.marks.before_request()
        if self.count is not None:
            self.count(perf_counter())
        if self.looks is not None:
            self.looks.requested()

    def received(self, now_s: float, batch: Any) -> None:
        """Notes a batch that came."""
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.received(batch)
        if self.looks is not None:
            self.looks.received(now_s)

    def exhausted(self, now_s: float) -> None:
        """Notes that no batch came."""
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.waited()

    def backward(self, now_s: float, loss: Any) -> None:
        """Notes a backward pass."""
        if self.on_first_work:
            self._work_begins()
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.backward(loss)
        if self.looks is not None:
            self.looks.backward()

    def stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer."""
        if self.on_first_work:
            self._work_begins()
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.stepped()
        if self.looks is not None:
            self.looks.stepped(now_s)

    def _work_begins(self) -> None:
        """Calls what waits for the first work."""
        waiting = self.on_first_work[:]
        self.on_first_work.clear()
        for begin in waiting:
            begin()

    def end_marks(self) -> None:
        """Makes no more marks: the device failed, or this is a forked process."""
        if self.marks is not None:
            self._ended_marks.append(self.marks)
            self.marks = None

    def stop(self) -> None:
        """Makes all hooks record nothing from here on."""
        self.emit = _drop
        self.end_marks()

    def give_up(self, error: Exception) -> None:
        """Notes the error of a hook: none of them records any more, and who reads the events knows."""
        if self.failed is None:
            self.failed = error
            self.stop()
            # its words may be about the script's data
            facts = {"error": type(error).__name__}
            self.buffer.describe(Description(next(self._next_number), "failure", facts))


@dataclass
class Current:
    """The recorder of this process."""

    recorder: Recorder | None = None
    """None where nobody keeps the events."""


CURRENT = Current()


def _drop(_row: object) -> None:
    """Takes an event that nobody wants."""


class Replacements:
    """Attributes of other packages that hooks have replaced."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._handles: list[Any] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replaces an attribute of a class or module by what `wrap` makes of it."""
        original = vars(owner)[name]
        replacement = wrap(original)
        setattr(replacement, MARK, original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, replacement, original))

    def keep(self, handle: Any) -> None:
        """Keeps the handle of a registered hook, whose method `remove` takes it back."""
        self._handles.append(handle)

    def remove(self) -> None:
        """Takes all of it back, unless another tool has replaced it since."""
        for owner, name, replacement, original in reversed(self._replaced):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._replaced.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def loaded(module: str, name: str) -> Any:
    """Returns a class of a module that is imported already; None where either is missing."""
    return getattr(sys.modules.get(module), name, None)
