"""How long it takes to unpickle the batches that workers send: timed for a few batches of each loader.

A DataLoader's workers send batches through a queue of multiprocessing, which unpickles them by
`ForkingPickler.loads`: in the thread that trains, or in the one that pins. PyTorch opens each segment of
shared memory there, so a batch of many tensors takes long.
"""

from __future__ import annotations

import multiprocessing.reduction
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import Any

SKIPPED = 2
"""The first batches of a loader: what unpickling needs is imported with them."""
BATCHES = 16
"""Batches of a loader that are timed."""
MOST_BATCHES = 1_000
"""Batches of all loaders after which nothing is timed any more."""
MOST_WAITING = 64
"""Batches that no loop has received, of which the times are kept. A forked worker has the function, too, and
unpickles by it what it is to make."""


@dataclass(slots=True)
class _OfLoader:
    """What the batches of a loader took so far."""

    batches: int = 0
    seconds: float = 0.0
    elsewhere: int = 0
    """Batches that another thread unpickled than the one that received them."""


class UnpicklingClock:
    """Times the unpickling of batches, until enough is known."""

    def __init__(self, describe: Callable[[dict[str, Any]], None]) -> None:
        """`describe` is called once for each loader, with what is known of it."""
        self._describe = describe
        self._loads = multiprocessing.reduction.ForkingPickler.loads
        self._unpickled: list[tuple[int, float]] = []
        """The thread and the seconds of each batch that no loop has received yet."""
        self._of_loader: dict[int, _OfLoader] = {}
        self._batches = 0
        multiprocessing.reduction.ForkingPickler.loads = self._timed

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        began_s = perf_counter()
        value = self._loads(*args, **kwargs)
        took_s = perf_counter() - began_s
        # A worker sends the number of the batch with it.
        is_batch = type(value) is tuple and len(value) == 2 and type(value[0]) is int
        if is_batch and len(self._unpickled) < MOST_WAITING:
            self._unpickled.append((get_ident(), took_s))
        return value

    def received(self, loader: int) -> bool:
        """Counts a batch of a loader that was received; returns whether more are to be timed."""
        unpickled = self._unpickled
        self._unpickled = []
        self._batches += 1
        known = self._of_loader.setdefault(loader, _OfLoader())
        known.batches += 1
        if SKIPPED < known.batches <= SKIPPED + BATCHES:
            known.seconds += sum(seconds for _, seconds in unpickled)
            known.elsewhere += sum(thread != get_ident() for thread, _ in unpickled)
        if known.batches == SKIPPED + BATCHES and known.seconds:
            in_thread = "pinning" if known.elsewhere > BATCHES // 2 else "training"
            facts = {"unpickle_s": known.seconds / BATCHES, "unpickled_in": in_thread}
            self._describe({"loader": loader, **facts})
        return self._batches < MOST_BATCHES

    def remove(self) -> None:
        """Restores the function, unless another tool has replaced it since."""
        if multiprocessing.reduction.ForkingPickler.loads == self._timed:
            multiprocessing.reduction.ForkingPickler.loads = self._loads
