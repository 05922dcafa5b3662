"""What a script declares: the loader that trains (`vitprof.watch`), of any kind, and its steps (`vitprof.step`).

There is one run at a time. Iterating again over its loader, or over one of the same name and arguments that was made
after that was gone, is the next epoch. Iterating over any other watched loader, outside the first one's loop, ends the
run and begins a new one; with the command `vitprof watch` around the script there is only one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, TypeVar, overload

from vitprof.names import tamed_name
from vitprof.watch.fetch_times import MAKING, FetchTimes
from vitprof.watch.loader_hooks import install, time_workers
from vitprof.watch.loaders import generic_facts, loader_facts
from vitprof.watch.patches import CURRENT, iterables
from vitprof.watch.patching import DATALOADER, OTHER_LOADERS, SOCKET, STEPS, say, when_imported
from vitprof.watch.proxy import Proxy, passing_for
from vitprof.watch.ranks import is_recorded
from vitprof.watch.script_objects import attribute
from vitprof.watch.send import Wanted, how_it_ended
from vitprof.watch.watcher import the_watcher

F = TypeVar("F", bound=Callable[..., Any])
ARGUMENTS = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
"""Arguments that loaders of one run share: two that differ in one of these are two experiments."""


@dataclass(eq=False)
class Planned:
    """The run that iterating over a loader begins."""

    wanted: Wanted
    arguments: tuple[Any, ...]
    """The loader's type and its `ARGUMENTS`."""
    facts: dict[str, Any]
    """See `loaders.loader_facts`."""
    owner: weakref.ref[Any]
    replaces: bool
    """Whether the loader of the run before had the same name and still existed: this is another run."""
    passive: bool = False
    """Whether it is not watched, or no longer."""
    over: bool = False
    iterator: weakref.ref[Any] | None = None
    """The iterator of the current loop over it; None where that is over."""


class Runs:
    """The runs of this process, one after another."""

    def __init__(self) -> None:
        self._current: Planned | None = None

    def planned(self, watched: Any, loader: Any, name: str, *, quiet: bool) -> Planned:
        """Returns the run that iterating over `watched` will begin; `watched` is `loader` or a proxy of it."""
        current, wanted = self._current, Wanted(tamed_name(str(name)), quiet)
        replaces = (
            current is not None
            and current.wanted.name == wanted.name
            and current.owner() is not None
        )
        arguments = (type(loader), *(attribute(loader, argument) for argument in ARGUMENTS))
        facts = generic_facts(loader)
        watcher = the_watcher()
        watcher.loaders.declare(watched, None if watched is loader else facts)
        if watcher.wanted is None:
            watcher.wanted = wanted
            atexit.register(watcher.guard, self._say_unused)
        return Planned(wanted, arguments, facts, weakref.ref(watched), replaces)

    def take(self, run: Planned, iterator: Any) -> None:
        """Makes `run` the current run, where it should be, as a batch of its loader is requested."""
        if run.iterator is not None and run.iterator() is iterator:
            return
        import torch

        if run.passive or not torch.is_grad_enabled():
            return
        if run.over:
            run.passive = True
            followed = (
                ""
                if self._current is None
                else f": '{self._current.wanted.name}' was looped over after it"
            )
            say(
                f"not watching '{run.wanted.name}' any more{followed}. A validation loop belongs under "
                "torch.no_grad(); to begin another run, call vitprof.watch() again"
            )
            return
        if not takes_part():
            run.passive = True
            return
        looped_over = None if self._current in (None, run) else self._current.iterator
        if looped_over is not None and looped_over() is not None:
            return  # a loader inside the loop over the one that trains
        self._follow(run)
        run.iterator = weakref.ref(iterator)

    def _follow(self, run: Planned) -> None:
        current = self._current
        if current is not None and current is not run:
            current.over = True
            same = (run.wanted.name, run.arguments) == (current.wanted.name, current.arguments)
            if os.environ.get(SOCKET) or (same and not run.replaces and current.owner() is None):
                the_watcher().loaders.let_go()
            else:
                the_watcher().pause("done", "", over=True)
        self._current = run
        the_watcher().wanted = run.wanted

    def begun(self, loader: Any, name: str, *, quiet: bool) -> Planned:
        """Returns the run of a DataLoader that a framework trains on from here on; its hooks report its batches."""
        run = self.planned(loader, loader, name, quiet=quiet)
        self._follow(run)
        return run

    def end(self, run: Planned, error: BaseException | None = None) -> None:
        """Ends the watching of a loader; `error` ended the run."""
        run.passive = True
        if run is self._current and not os.environ.get(SOCKET):
            self._current = None
            the_watcher().pause(*how_it_ended(error), over=True)

    def _say_unused(self) -> None:
        failed = getattr(sys, "last_value", None) is not None
        if not the_watcher().has_begun and not failed and "torch" in sys.modules and is_recorded():
            say(
                "nothing was recorded: no loader that vitprof.watch() returned was looped over with gradients "
                "on. Watch what the loop gets, such as the loader that accelerator.prepare() returned"
            )

    def end_cell(self, result: Any) -> None:
        """Pauses the run when a notebook's cell has ended, with IPython's `result`."""
        if self._current is not None and not os.environ.get(SOCKET):
            error = getattr(result, "error_before_exec", None) or getattr(
                result, "error_in_exec", None
            )
            the_watcher().pause(*how_it_ended(error))


RUNS = Runs()


def takes_part() -> bool:
    """Returns whether this process is the first of its job, which is watched, or counts steps for it."""
    return is_recorded() or bool(os.environ.get(SOCKET) and os.environ.get(STEPS))


MOST_AHEAD = 64
"""If so many batches of a loader are taken ahead by another one, which one became which is not known."""


def watch(loader: Any, *, name: str = "", quiet: bool = False) -> Any:
    """Returns a proxy of `loader` (any iterable); iterating over it is recorded as a run called `name` (by default the
    script's). `quiet`: print no line at the end. Needs PyTorch. Never raises an error of its own.
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
    """A proxy of a loader; each iteration over it is an epoch of its run."""

    def __init__(self, loader: Any, name: str, *, quiet: bool) -> None:
        super().__init__(loader)
        self._vitprof_run = RUNS.planned(self, loader, name, quiet=quiet)
        self._vitprof_iterator: Any = None

    def __iter__(self) -> Any:
        run = self._vitprof_run
        return begin_timed(self, functools.partial(iter, self._vitprof_wrapped), run.facts, run)

    def _vitprof_next(self) -> Any:
        """Replaces `__next__` of a loader that is its own iterator, such as a generator or a DALI iterator."""
        if self._vitprof_iterator is None:
            self._vitprof_iterator = self._vitprof_begun(self._vitprof_wrapped)
        return next(self._vitprof_iterator)

    def _vitprof_begun(self, iterator: Any) -> Any:
        """Returns a proxy of `iterator`, an iteration that other code has begun."""
        run = self._vitprof_run
        passes = passing_for(WatchedIterator, iterator)(iterator, self, Inside(run.facts), run)
        now = perf_counter()
        guarded(the_watcher().begun, self, passes, now, now)
        return passes

    def close(self) -> None:
        """Ends the run: later iterations are not watched. Closes the loader too, if that can be closed."""
        guarded(RUNS.end, self._vitprof_run)
        if callable(close := getattr(self._vitprof_wrapped, "close", None)):
            close()


def begin_timed(
    loader: Any, begin: Callable[[], Any], facts: dict[str, Any], run: Planned | None = None
) -> Any:
    """Begins an iteration over `loader`, of any kind; returns its timed iterator. `run`: if the script declares it."""
    watcher = the_watcher()
    if (
        watcher.guard.given_up or watcher.receiver is not watcher or MAKING.now.laps is not None
    ):  # inside another loader
        return begin()
    began = perf_counter()
    watcher.guard(watcher.beginning, loader, began)
    inside = Inside(facts)
    watcher.receiver = inside
    try:
        iterator = begin()
    finally:
        watcher.receiver = watcher
    passes = passing_for(WatchedIterator, iterator)(iterator, loader, inside, run)
    until_s = perf_counter()
    if CURRENT.recorder is not None:
        iterables.record_begun(CURRENT.recorder, passes, loader, facts, began, until_s)
    watcher.guard(watcher.begun, loader, passes, began, until_s, facts)
    return passes


class WatchedIterator(Proxy):
    """A proxy of a loader's iterator."""

    def __init__(self, iterator: Any, watched: Any, inside: Inside, run: Planned | None) -> None:
        super().__init__(iterator)
        self._vitprof_watched, self._vitprof_run = watched, run
        """Keeps the watched loader alive as long as its iterator."""
        self._vitprof_inside = inside

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        recorder = CURRENT.recorder
        if recorder is None or the_watcher().receiver is not the_watcher():
            return self._vitprof_fetch()
        return iterables.fetch_recorded(recorder, self, self._vitprof_fetch)

    def _vitprof_fetch(self) -> Any:
        watcher = the_watcher()
        guard, iterator, run = watcher.guard, self._vitprof_wrapped, self._vitprof_run
        if run is not None and not guard.given_up:
            guard(RUNS.take, run, self)
        passive = guard.given_up or (run is not None and run.passive)
        if passive or watcher.receiver is not watcher or MAKING.now.laps is not None:
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
            if run is not None:
                run.iterator = None
            raise
        watcher.receiver = watcher
        guard(watcher.given, self, perf_counter(), batch, inside.times())
        return batch


class Inside:
    """Takes the events of DataLoaders inside a watched loader: the n-th batch inside is the n-th one outside."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        """The facts of the watched loader, completed by those of a DataLoader inside it."""
        self._made: deque[FetchTimes | None] = deque()
        self._left, self._drained = -1, False
        """The batches inside that are not outside yet, and whether they became fewer. Where more follow, or one more is
        left, batches are put together anew."""
        self._thread = threading.get_ident()
        self.kept = None
        """Kept batches are served outside."""

    def ignore(self, *_: Any) -> None:
        """Does nothing at the other events of a DataLoader."""

    beginning = asked = left_empty = ignore

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """Takes the facts of a DataLoader, as an iteration over it has begun."""
        self._facts.update(loader_facts(loader))

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """Takes the times of a batch of a DataLoader."""
        if threading.get_ident() == self._thread and len(self._made) < MOST_AHEAD:
            self._made.append(times)
            if self._drained:
                self._made = deque(maxlen=0)

    def times(self) -> FetchTimes | None:
        """Returns the times of the next batch outside; None where they are not known."""
        left = len(self._made) - 1
        if not 0 <= left < MOST_AHEAD or 0 <= self._left < left:
            self._made = deque(maxlen=0)
            return None
        self._drained |= left < self._left
        self._left = left
        return self._made.popleft()


@functools.cache
def time_other_loaders() -> None:
    """Patches the classes of `OTHER_LOADERS`, as they are imported: their iterations are timed as by `watch`."""

    def time_iterations(name: str, module: ModuleType) -> None:
        if (kind := getattr(module, name, None)) is None:
            return
        begin = kind.__iter__

        @functools.wraps(begin)
        def begin_reported(self: Any) -> Any:
            try:
                facts, _ = generic_facts(self), hash(weakref.ref(self))
            except Exception:  # it cannot be known again
                return begin(self)
            return begin_timed(self, functools.partial(begin, self), facts)

        kind.__iter__ = begin_reported

    for imported, name in OTHER_LOADERS:
        when_imported(imported, functools.partial(guarded, time_iterations, name))


@functools.cache
def prepare() -> None:
    """Patches DataLoaders to time their batches, and a notebook to report the end of its cells. Once in a process."""
    the_watcher().loaders.declares = True  # only loaders that the script declares train

    def time_loaders(dataloader: ModuleType) -> None:
        install(dataloader)
        time_workers(dataloader)
        time_other_loaders()

    when_imported(DATALOADER, time_loaders)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", lambda result=None: guarded(RUNS.end_cell, result))


def guarded(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of vitprof; an error in it ends the watching, and nothing else."""
    the_watcher().guard(function, *args)


def script_name() -> str:
    """Returns the default name of a run: the script's file name, else "training"."""
    return (
        Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "training"
    )


class Step(contextlib.ContextDecorator):
    """A context manager, `with vitprof.step():`, and a decorator, `@vitprof.step`.

    The time between two steps that is not the wait for a batch is recorded apart from their work. It does nothing where
    no training is watched, and never waits for the device. A step inside another one is part of it; if a batch has
    several steps, the work lasts from the beginning of the first to the end of the last.
    """

    @overload
    def __call__(self) -> Step: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: F | None = None) -> Step | F:
        """Returns the context manager; for a function, returns a function that is a step each time it is called."""
        return self if function is None else super().__call__(function)

    def __enter__(self) -> None:
        if CURRENT.recorder is not None:
            iterables.record_mark(CURRENT.recorder, entering=True)
        guarded(the_watcher().mark_step, True)

    def __exit__(self, *_: Any) -> None:
        guarded(the_watcher().mark_step, False)
        if CURRENT.recorder is not None:
            iterables.record_mark(CURRENT.recorder, entering=False)


step = Step()
