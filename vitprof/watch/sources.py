"""Where the training thread gets its batches, if not from `next()` of a DataLoader: from a queue or a future that a
thread of the script fills. Where nothing of it is seen, a step is what an optimizer steps for, and its wait is
not known.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitprof.watch.batches import NOTHING, n_samples, tensors
from vitprof.watch.fetch_times import MAKING, FetchTimes
from vitprof.watch.loaders import Seen, generic_facts
from vitprof.watch.loop import Loop, State
from vitprof.watch.patches.waits import TAKEN_FROM, arrays, n_rows

if TYPE_CHECKING:
    from vitprof.watch.watcher import Watcher

MOST_KEPT = 256
MOST_BEFORE_FRAC = 0.03
"""Share of a step from which the time between the optimizer's step and the call may be a wait elsewhere, such as for
`concurrent.futures.wait` or in an event loop: the batch was there when it was asked for."""


def open_source(watcher: Watcher, loop: Loop, fetched: Seen | None) -> None:
    """Goes on with what this thread gets, which trains: another one has the batches `fetched`, or no loader does."""
    watcher.source = Source(watcher, fetched=fetched)
    facts = generic_facts(None) if fetched is None else fetched.facts
    watcher.loaders.ours = watcher.loaders.add(watcher.source, facts)
    loop.change_loader(perf_counter(), expects_work=True)
    loop.steps.source = "no loader" if fetched is None else "a thread"


class Source:
    """Reports each batch that its thread gets from a queue as a loader's iterator would: the request, then the batch.

    A call that returns something else was no request. An optimizer that steps again without a batch between ends a step
    whose wait is not known.
    """

    def __init__(self, watcher: Watcher, *, fetched: Seen | None) -> None:
        """`fetched`: the loader that another thread iterates over; None if no loader is known."""
        self._watcher, self._thread, self.fetched = watcher, threading.get_ident(), fetched
        self.epoch = self._epoch = 0
        """The iterations that other threads have begun, and the one of the last batch."""
        self._busy = self._fed = self.has_given = False
        """Whether a call is under way, a batch came since the last step of the optimizer, and any came."""
        self._asked_s = self._stepped_s = self._stepped_before_s = math.nan
        """When the batch was requested, and when the optimizer last stepped, and before that."""
        self._made: dict[int, tuple[weakref.ref[Any], int, FetchTimes | None]] = {}
        """The first tensor of each batch fetched in other threads by `id()`, its epoch, and how it was made."""
        self._patched: list[tuple[Any, str, Any]] = []
        for module, kind, name in TAKEN_FROM:
            if (owner := getattr(sys.modules.get(module), kind, None)) is not None:
                method = getattr(owner, name)
                self._patched.append((owner, name, method))
                setattr(owner, name, self._timed(method))

    def close(self) -> None:
        """Takes the patches back: the next loader that is iterated over may train."""
        for owner, name, method in self._patched:
            setattr(owner, name, method)
        self._watcher.source = self._watcher.loaders.ours = None

    def is_foreign(self, iterator: Any) -> bool:
        """Returns whether an event of `iterator` is that of another thread, or part of a call that is under way."""
        return iterator is not self and (self._busy or threading.get_ident() != self._thread)

    def note(self, batch: Any, times: FetchTimes | None) -> None:
        """Remembers a batch that another thread has fetched."""
        made = self._made
        while len(made) >= MOST_KEPT:
            del made[next(iter(made))]
        if (tensor := next(tensors(batch), None)) is not None:
            made[id(tensor)] = weakref.ref(tensor), self.epoch, times

    def stepped(self, optimizer: Any) -> None:
        """Ends a step whose batch was not seen; of several optimizers, one alone does."""
        if threading.get_ident() == self._thread and self._watcher.loaders.is_main(optimizer):
            if not self._fed:
                self._watcher.asked(self, perf_counter())
                self._watcher.given(self, math.nan, None, None)
            self._fed = False
            self._stepped_before_s, self._stepped_s = self._stepped_s, perf_counter()

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def take(*args: Any, **kwargs: Any) -> Any:
            if self._busy or threading.get_ident() != self._thread or MAKING.now.laps is not None:
                return method(*args, **kwargs)
            self._busy, guard = True, self._watcher.guard
            try:
                guard(self._ask, perf_counter())
                taken = method(
                    *args, **kwargs
                )  # where it fails, as at its time limit, the next call goes on with it
                guard(self._give, perf_counter(), taken)
            finally:
                self._busy = False
            return taken

        return take

    def _ask(self, now_s: float) -> None:
        import torch

        loop = self._watcher.loop
        if loop is not None and loop.requested is None and torch.is_grad_enabled():
            self._asked_s = now_s  # of several polls the first
            self._watcher.asked(self, now_s)
            if math.isnan(loop.ahead.wait_s):  # what seemed to begin when the optimizer had stepped
                loop.ahead = NOTHING

    def _give(self, now_s: float, taken: Any) -> None:
        loop = self._watcher.loop
        if loop is None or loop.requested is None:
            return
        if (first := next(arrays(taken), None)) is None:
            loop.requested, loop.state = None, State.IDLE
            return
        ref, epoch, times = self._made.pop(id(first), (None, self._epoch, None))
        if ref is not None and ref() is not first:
            epoch, times = self._epoch, None
        loop.epoch += epoch != self._epoch and loop.steps.n > 0
        self._epoch = epoch
        self._fed = self.has_given = True
        little_s = MOST_BEFORE_FRAC * (self._stepped_s - self._stepped_before_s)
        elsewhere = self._asked_s - self._stepped_s > little_s > now_s - self._asked_s
        self._watcher.given(self, math.nan if elsewhere else now_s, taken, times)
        if loop.step is not None and not n_samples(taken):  # an array
            loop.step.marks.samples += n_rows(first)
