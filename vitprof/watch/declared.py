"""What a script declares: the loader that trains (`vitprof.watch`), and its steps (`vitprof.step`).

A watched loader is one of any kind, with each batch timed as the loop gets it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, overload

from vitprof.watch.fetch_times import FetchTimes
from vitprof.watch.loader_hooks import install, time_workers
from vitprof.watch.loaders import loader_facts
from vitprof.watch.patching import DATALOADER, when_imported
from vitprof.watch.proxy import Proxy, passing_for
from vitprof.watch.runs import RUNS
from vitprof.watch.watcher import the_watcher

P = ParamSpec("P")
R = TypeVar("R")
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
        the_watcher().guard.give_up(f"{type(error).__name__}: {error}")
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
        guarded(the_watcher().begun, self, passes, now, now)
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
    watcher, loader = the_watcher(), watched._vitprof_wrapped
    if watcher.guard.given_up or watcher.receiver is not watcher:  # this is inside another watched loader
        return iter(loader)
    began = perf_counter()
    watcher.guard(watcher.beginning, watched, began)
    inside = Inside(watched._vitprof_run.facts)
    watcher.receiver = inside
    try:
        iterator = iter(loader)
    finally:
        watcher.receiver = watcher
    passes = passing_for(WatchedIterator, iterator)(iterator, watched, inside)
    watcher.guard(watcher.begun, watched, passes, began, perf_counter())
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
        watcher = the_watcher()
        guard, iterator, run = watcher.guard, self._vitprof_wrapped, self._vitprof_watched._vitprof_run
        if not guard.given_up:
            guard(RUNS.take, run, self)
        if guard.given_up or run.passive or watcher.receiver is not watcher:
            return next(iterator)
        guard(watcher.asked, self, perf_counter())
        kept, watcher.kept = watcher.kept, None
        if kept is not None:
            guard(watcher.given, self, perf_counter(), kept, None)
            return kept
        watcher.receiver = inside = self._vitprof_inside
        try:
            batch = next(iterator)
        except BaseException:
            watcher.receiver = watcher
            guard(watcher.left_empty, self, perf_counter())
            guard(RUNS.left, run)
            raise
        watcher.receiver = watcher
        guard(watcher.given, self, perf_counter(), batch, inside.times())
        return batch


class Inside:
    """The receiver of events of DataLoaders inside a watched loader while that makes a batch, instead of the `Watcher`.

    The n-th batch inside counts as the n-th one outside, though it may be made ahead; not where many make one.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        """The facts of the watched loader, completed by those of a DataLoader inside it."""
        self._made: deque[FetchTimes | None] = deque()
        self._thread = threading.get_ident()
        self.kept = None
        """Kept batches are served outside."""

    def beginning(self, loader: Any, now: float) -> None:
        """Does nothing when an iteration over a DataLoader begins."""

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """Takes the facts of a DataLoader, as an iteration over it has begun."""
        self._facts.update(loader_facts(loader))

    def asked(self, iterator: Any, now: float) -> None:
        """Does nothing when a batch of a DataLoader is requested."""

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
    the_watcher().loaders.declares = True  # only loaders that the script declares train
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
    the_watcher().guard(function, *args)


def script_name() -> str:
    """Returns the default name of a run: the script's file name, else "training"."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "training"


class Step:
    """A context manager, `with vitprof.step():`, and a decorator, `@vitprof.step`.

    The time between two steps that is not the wait for a batch is recorded apart from their work. It does nothing where
    no training is watched, and never waits for the device. A step inside another one is part of it; if a batch has
    several steps, the work lasts from the beginning of the first to the end of the last.
    """

    @overload
    def __call__(self) -> Step: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...
    def __call__(self, function: Callable[P, R] | None = None) -> Step | Callable[P, R]:
        """Returns the context manager; for a function, returns a function that is a step each time it is called."""
        if function is None:
            return self

        @functools.wraps(function)
        def step_of(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return step_of

    def __enter__(self) -> None:
        guarded(the_watcher().mark_step, True)

    def __exit__(self, *_: Any) -> None:
        guarded(the_watcher().mark_step, False)


step = Step()
