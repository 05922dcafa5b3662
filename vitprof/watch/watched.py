"""The watched loader that `vitprof.watch` returns: a loader of any kind, with each batch timed as the loop gets it."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.watch.fetch_times import FetchTimes
from vitprof.watch.loader_hooks import install
from vitprof.watch.loop import the_loop
from vitprof.watch.on_import import DATALOADER, when_imported
from vitprof.watch.proxy import Proxy, passing_for
from vitprof.watch.runs import RUNS
from vitprof.watch.session import loader_facts
from vitprof.watch.workers import time_workers

MOST_AHEAD = 64
"""If a loader takes this many batches of another one ahead, which batch became which is not known."""


def watch(loader: Any, *, name: str = "", quiet: bool = False) -> Any:
    """Returns a proxy of `loader`; iterating over it is recorded as a run called `name` (by default the script's name).

    `loader`: any iterable, such as a PyTorch DataLoader, a WebDataset or an iterator of DALI. `quiet`: print no line at
    the end of the run. Needs PyTorch in the process that iterates. Never raises an error of its own.
    """
    if issubclass(type(loader), Watched):
        return loader
    try:
        prepare()
        return passing_for(Watched, loader)(loader, name or script_name(), quiet=quiet)
    except Exception as error:
        the_loop().guard.give_up(f"{type(error).__name__}: {error}")
        return loader


class Watched(Proxy):
    """A proxy of a loader. Each iteration over it is an epoch of its run."""

    def __init__(self, loader: Any, name: str, *, quiet: bool) -> None:
        super().__init__(loader)
        self._vitprof_run = RUNS.planned(self, loader, name, quiet=quiet)
        self._vitprof_iterator: Any = None

    def __iter__(self) -> Any:
        return _begin(self)

    def _vitprof_next(self) -> Any:
        """Replaces `__next__` of a loader that is its own iterator, such as a generator or a DALI iterator."""
        if self._vitprof_iterator is None:
            self._vitprof_iterator = self._vitprof_begun(self._vitprof_wrapped)
        return next(self._vitprof_iterator)

    def _vitprof_begun(self, iterator: Any) -> Any:
        """Returns a proxy of `iterator`, an iteration that other code has begun."""
        passes = passing_for(WatchedIterator, iterator)(iterator, self, Inside(self._vitprof_run.facts))
        now = perf_counter()
        guarded(the_loop().begun, self, passes, now, now)
        return passes

    def _vitprof_end(self, error: BaseException | None = None) -> None:
        """Ends the run, with the error that ended it, if any."""
        guarded(RUNS.end, self._vitprof_run, error)

    def close(self) -> None:
        """Ends the run: later iterations are not watched. Closes the loader too, if that can be closed."""
        self._vitprof_end()
        close = getattr(self._vitprof_wrapped, "close", None)
        if callable(close):
            close()


def _begin(watched: Watched) -> Any:
    """Begins an iteration, and returns a proxy of its iterator."""
    loop, loader = the_loop(), watched._vitprof_wrapped
    if loop.guard.given_up or loop.told is not loop:  # not watching, or this is inside another watched loader
        return iter(loader)
    began = perf_counter()
    loop.guard(loop.beginning, watched, began)
    inside = Inside(watched._vitprof_run.facts)
    loop.told = inside
    try:
        iterator = iter(loader)
    finally:
        loop.told = loop
    passes = passing_for(WatchedIterator, iterator)(iterator, watched, inside)
    loop.guard(loop.begun, watched, passes, began, perf_counter())
    return passes


class WatchedIterator(Proxy):
    """A proxy of a loader's iterator."""

    def __init__(self, iterator: Any, watched: Watched, inside: Inside) -> None:
        super().__init__(iterator)
        self._vitprof_watched = watched
        """Keeps the watched loader alive as long as its iterator."""
        self._vitprof_inside = inside

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        loop = the_loop()
        guard, iterator, run = loop.guard, self._vitprof_wrapped, self._vitprof_watched._vitprof_run
        if not guard.given_up:
            guard(RUNS.take, run, self)
        if guard.given_up or run.passive or loop.told is not loop:
            return next(iterator)
        guard(loop.asked, self, perf_counter())
        kept = loop.take_kept()
        if kept is not None:
            guard(loop.given, self, perf_counter(), kept, None)
            return kept
        loop.told = inside = self._vitprof_inside
        try:
            batch = next(iterator)
        except BaseException:
            loop.told = loop
            guard(loop.left_empty, self, perf_counter())
            guard(RUNS.left, run)
            raise
        loop.told = loop
        guard(loop.given, self, perf_counter(), batch, inside.times())
        return batch


class Inside:
    """The receiver, instead of the `Loop`, of events of DataLoaders inside a watched loader, while that makes a batch.

    The n-th batch inside counts as the n-th one outside, though it may be made ahead; not where many make one.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        """The facts of the watched loader, completed by those of a DataLoader inside it."""
        self._made: deque[FetchTimes | None] = deque()
        self._thread = threading.get_ident()

    def beginning(self, loader: Any, now: float) -> None:
        """Does nothing when an iteration over a DataLoader begins."""

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """Takes the facts of a DataLoader, as an iteration over it has begun."""
        self._facts.update(loader_facts(loader))

    def asked(self, iterator: Any, now: float) -> None:
        """Does nothing when a batch of a DataLoader is requested."""

    def take_kept(self) -> None:
        """Returns None: kept batches are served outside."""

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """Takes the times of a batch of a DataLoader."""
        if threading.get_ident() == self._thread and len(self._made) < MOST_AHEAD:
            self._made.append(times)

    def left_empty(self, iterator: Any, now: float) -> None:
        """Does nothing when a DataLoader has no more batches."""

    def times(self) -> FetchTimes | None:
        """Returns the times of the next batch outside; None where they are not known."""
        if not self._made or len(self._made) >= MOST_AHEAD:
            return None
        return self._made.popleft()


@functools.cache
def prepare() -> None:
    """Patches DataLoaders to time their batches, and a notebook to report the end of its cells. Once in a process."""
    the_loop().loaders.declares = True  # only loaders that the script declares train
    when_imported(DATALOADER, _time_loaders)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", _cell_ended)


def _time_loaders(dataloader: ModuleType) -> None:
    install(dataloader)
    time_workers(dataloader)


def _cell_ended(result: Any = None) -> None:
    guarded(RUNS.end_cell, result)


def guarded(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of vitprof; an error in it ends the watching, and nothing else."""
    the_loop().guard(function, *args)


def script_name() -> str:
    """Returns the default name of a run: the script's file name, else "training"."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "training"
