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
from typing import Any

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


class Recorder:
    """What all hooks share: where events go, and the numbers of objects."""

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

    def stop(self) -> None:
        """Makes all hooks record nothing from here on."""
        self.emit = _drop

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
