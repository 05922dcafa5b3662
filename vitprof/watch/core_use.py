"""What a watched process uses of the cores while it makes a batch: its stages, and the transforms of each Compose.

Runs in the loop's process and in its workers, for few calls of few batches, so it must take little.
"""

from __future__ import annotations

from typing import Any

from vitprof.measure.core_use import NOTHING, CoreTimes, ThreadFiles
from vitprof.watch.own_thread import native_ids


class CoreLook:
    """Looks at what a process uses while a thread of it makes a batch; made by that thread."""

    def __init__(self, samples: int) -> None:
        """Begins to look at a batch of so many samples. Raises `OSError` where Linux does not say it."""
        self._files = ThreadFiles(native_ids())
        self._every = max(1, samples // self._files.calls)
        self._calls = 0
        self._began = self._files.now()
        self._collating: CoreTimes | None = None
        self._collate = NOTHING

    def begin_call(self) -> list[CoreTimes] | None:
        """Returns a list with what has been used before a call of a Compose; None for most of them: a few are looked
        at, spread over the batch."""
        is_due = not self._calls % self._every
        self._calls += 1
        return [self._files.now()] if is_due else None

    def now(self) -> CoreTimes:
        """Returns what the process has used so far."""
        return self._files.now()

    def begin_collate(self) -> None:
        self._collating = self._files.now()

    def end_collate(self) -> None:
        if self._collating is not None:
            self._collate = self._collate.plus(self._files.now().since(self._collating))
            self._collating = None

    def end(self) -> tuple[CoreTimes, CoreTimes]:
        """Ends the look. Returns what the dataset, with its transforms, and collate have used since it began."""
        dataset = self._files.now().since(self._began).since(self._collate)
        self._files.close()
        return dataset, self._collate


def look_at(index: Any) -> CoreLook | None:
    """Returns a look at the batch that begins, of the samples `index`: a list of them, or what gives a whole batch.
    None where the system does not say for how long a thread waits."""
    try:
        return CoreLook(len(index) if isinstance(index, list) else 1)
    except (OSError, ValueError):
        return None
