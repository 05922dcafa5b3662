"""What `vitprof.watch` returns: a loader of any kind whose batches are timed as the loop gets them."""

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

from vitprof.watch.loader_hooks import install
from vitprof.watch.loop import the_loop
from vitprof.watch.on_import import DATALOADER, when_imported
from vitprof.watch.proxy import Proxy, passing_for
from vitprof.watch.runs import RUNS
from vitprof.watch.session import loader_facts
from vitprof.watch.timed import FetchTimes
from vitprof.watch.workers import time_workers

MOST_AHEAD = 64
"""Of a loader that takes so many batches of another one ahead nobody can tell which became which."""


def watch(loader: Any, *, name: str = "", quiet: bool = False) -> Any:
    """Returns what passes for `loader`; looping over it is recorded as a run of this name (by default the script's).

    `loader`: any iterable, such as a PyTorch DataLoader, a WebDataset or an iterator of DALI. `quiet`: no line at the
    end of the run. Needs PyTorch in the process that loops. Never raises an error of its own.
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
    """Passes for a loader. Each iteration over it is an epoch of its run."""

    def __init__(self, loader: Any, name: str, *, quiet: bool) -> None:
        super().__init__(loader)
        self._vitprof_run = RUNS.planned(self, loader, name, quiet=quiet)
        self._vitprof_iterator: Any = None

    def __iter__(self) -> Any:
        return _begin(self)

    def _vitprof_next(self) -> Any:
        """Stands for `__next__` of a loader that is its own iterator, such as a generator or one of DALI's."""
        if self._vitprof_iterator is None:
            self._vitprof_iterator = self._vitprof_begun(self._vitprof_wrapped)
        return next(self._vitprof_iterator)

    def _vitprof_begun(self, iterator: Any) -> Any:
        """Returns what passes for `iterator`, which somebody else has begun."""
        passes = passing_for(WatchedIterator, iterator)(iterator, self, Inside(self._vitprof_run.facts))
        now = perf_counter()
        guarded(the_loop().begun, self, passes, now, now)
        return passes

    def _vitprof_end(self, error: BaseException | None = None) -> None:
        """Ends the run, which this error ended if any did."""
        guarded(RUNS.end, self._vitprof_run, error)

    def close(self) -> None:
        """Ends the run: later iterations are not watched. Closes the loader too, if that can be closed."""
        self._vitprof_end()
        close = getattr(self._vitprof_wrapped, "close", None)
        if callable(close):
            close()


def _begin(watched: Watched) -> Any:
    """Begins an iteration."""
    loop, loader = the_loop(), watched._vitprof_wrapped
    if loop.guard.given_up or loop.told is not loop:  # nobody watches, or it is part of something that is watched
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
    """Passes for a loader's iterator."""

    def __init__(self, iterator: Any, watched: Watched, inside: Inside) -> None:
        super().__init__(iterator)
        self._vitprof_watched = watched
        """It stays as long as somebody loops over it."""
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
    """Told instead of the `Loop` of DataLoaders that are iterated over while a batch of what stands around is awaited.

    Its n-th batch is taken for the n-th one outside, though it may be made ahead; not so where many make one.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        """Of the watched loader; a DataLoader inside it knows more."""
        self._made: deque[FetchTimes | None] = deque()
        self._thread = threading.get_ident()

    def beginning(self, loader: Any, now: float) -> None:
        """An iteration over a DataLoader begins."""

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """An iteration over a DataLoader has begun."""
        self._facts.update(loader_facts(loader))

    def asked(self, iterator: Any, now: float) -> None:
        """A batch of a DataLoader is asked for."""

    def take_kept(self) -> None:
        """What is given in place of a new batch is given outside."""

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """A DataLoader has given a batch that was made so."""
        if threading.get_ident() == self._thread and len(self._made) < MOST_AHEAD:
            self._made.append(times)

    def left_empty(self, iterator: Any, now: float) -> None:
        """A DataLoader has no more batches."""

    def times(self) -> FetchTimes | None:
        """Returns how the next batch outside was made; None where that is not known."""
        if not self._made or len(self._made) >= MOST_AHEAD:
            return None
        return self._made.popleft()


@functools.cache
def prepare() -> None:
    """Has DataLoaders tell how they make a batch, and a notebook when its cells are done. Once in a process."""
    the_loop().loaders.declares = True  # what trains is what the script says, and nothing else
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
    """Calls what watches; an error of it ends the watching, and nothing else."""
    the_loop().guard(function, *args)


def script_name() -> str:
    """Returns what to call a run that has no name."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "training"
