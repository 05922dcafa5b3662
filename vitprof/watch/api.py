"""What a script itself may say: the loader that trains, of any kind (`vitprof.watch`), and its steps
(`vitprof.step`)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from vitprof.names import tamed_name
from vitprof.watch.loader_facts import generic_facts
from vitprof.watch.patches import CURRENT, iterables
from vitprof.watch.patches.install import record_events
from vitprof.watch.patches.making import time_workers
from vitprof.watch.patches.watching import the_watching
from vitprof.watch.patching import DATALOADER, say, when_imported
from vitprof.watch.proxy import Proxy, passing_for
from vitprof.watch.rank_identity import is_recorded
from vitprof.watch.runs import RunSequence

F = TypeVar("F", bound=Callable[..., Any])
RUNS = RunSequence(the_watching)


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
        the_watching().give_up(f"{type(error).__name__}: {error}")
        return loader


class Watched(Proxy):
    """A proxy of a loader; each iteration over it is an epoch of its run."""

    def __init__(self, loader: Any, name: str, *, quiet: bool) -> None:
        super().__init__(loader)
        named = tamed_name(str(name))
        self._vitprof_run = RUNS.planned(self, loader, named, quiet=quiet)
        self._vitprof_facts = {**generic_facts(loader), "name": named, "declared": True}
        self._vitprof_iterator: Any = None

    def __iter__(self) -> Any:
        begin = functools.partial(iter, self._vitprof_wrapped)
        return iterables.begin_recorded(self, begin, self._vitprof_facts, self._vitprof_requested)

    def _vitprof_next(self) -> Any:
        """Replaces `__next__` of a loader that is its own iterator, such as a generator or a DALI iterator."""
        if self._vitprof_iterator is None:
            self._vitprof_iterator = self._vitprof_begun(self._vitprof_wrapped)
        return next(self._vitprof_iterator)

    def _vitprof_begun(self, iterator: Any) -> Any:
        """Returns a proxy of `iterator`, an iteration that other code has begun."""
        return iterables.begin_recorded(
            self, lambda: iterator, self._vitprof_facts, self._vitprof_requested
        )

    def _vitprof_requested(self, iterator: Any) -> bool:
        """Notes that a batch is requested of an iterator; returns whether it is part of a run."""
        run = self._vitprof_run
        guarded(RUNS.take, run, iterator)
        the_watching().is_paused = False
        return not run.passive

    def close(self) -> None:
        """Ends the run: later iterations are not watched. Closes the loader too, if that can be closed."""
        guarded(RUNS.end, self._vitprof_run)
        if callable(close := getattr(self._vitprof_wrapped, "close", None)):
            close()


@functools.cache
def prepare() -> None:
    """Installs the hooks, where nothing around the script has, and a notebook's report of the end of its cells. Once in
    a process."""
    the_watching().declares = True

    def record_loaders(dataloader: Any) -> None:
        record_events(dataloader)
        time_workers(dataloader)

    when_imported(DATALOADER, record_loaders)
    atexit.register(guarded, _say_unused)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", lambda result=None: guarded(RUNS.end_cell, result))


def guarded(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of vitprof; an error in it ends the watching, and nothing else."""
    watching = the_watching()
    if watching.over:
        return
    try:
        function(*args)
    except Exception as error:
        watching.give_up(f"{type(error).__name__}: {error}")


def script_name() -> str:
    """Returns the default name of a run: the script's file name, else "training"."""
    if sys.argv and sys.argv[0] not in ("", "-c", "-m"):
        return Path(sys.argv[0]).name
    return "training"


def _say_unused() -> None:
    failed = getattr(sys, "last_value", None) is not None
    begun = RUNS.any_begun or the_watching().recorder.declared.any_begun
    if not begun and not failed and "torch" in sys.modules and is_recorded():
        say(
            "nothing was recorded: no loader that vitprof.watch() returned was looped over with gradients "
            "on. Watch what the loop gets, such as the loader that accelerator.prepare() returned"
        )


class StepScope(contextlib.ContextDecorator):
    """A context manager, `with vitprof.step():`, and a decorator, `@vitprof.step`.

    The time between two steps that is not the wait for a batch is recorded apart from their work. It does nothing where
    no training is watched, and never waits for the device. A step inside another one is part of it; if a batch has
    several steps, the work lasts from the beginning of the first to the end of the last.
    """

    @overload
    def __call__(self) -> StepScope: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: F | None = None) -> StepScope | F:
        """Returns the context manager; for a function, returns a function that is a step each time it is called."""
        return self if function is None else super().__call__(function)

    def __enter__(self) -> None:
        if CURRENT.recorder is not None:
            iterables.record_mark(CURRENT.recorder, entering=True)

    def __exit__(self, *_: Any) -> None:
        # A generator of the script may leave a step as Python ends, which has cleared CURRENT by then.
        recorder = getattr(CURRENT, "recorder", None)
        if recorder is not None:
            iterables.record_mark(recorder, entering=False)


step = StepScope()
