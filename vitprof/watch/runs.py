"""Which run the loaders belong to that a script declares with `vitprof.watch`.

There is one run at a time. Iterating again over its loader, or over one of the same name and arguments that was made
after that was gone, is the next epoch. Iterating over any other watched loader, outside the first one's loop, ends the
run and begins a new one; with the command `vitprof watch` around the script there is only one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vitprof.errors import one_line
from vitprof.watch.patching import SOCKET, STEPS, say, telling
from vitprof.watch.rank_identity import is_recorded
from vitprof.watch.script_objects import attribute

ARGUMENTS = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
"""Arguments that loaders of one run share: two that differ in one of these are two experiments."""


@dataclass(eq=False)
class Planned:
    """The run that iterating over a loader begins."""

    name: str
    quiet: bool
    """Whether to print no line at the end of the run that says where to find it."""
    arguments: tuple[Any, ...]
    """The loader's type and its `ARGUMENTS`."""
    owner: weakref.ref[Any]
    replaces: bool
    """Whether the loader of the run before had the same name and still existed: this is another run."""
    passive: bool = False
    """Whether it is not watched, or no longer."""
    over: bool = False
    iterator: weakref.ref[Any] | None = None
    """The iterator of the current loop over it; None where that is over."""


class RunRecorder(Protocol):
    """What records the runs, one after another."""

    def plan(self, run: Planned) -> None:
        """Notes a loader that may train, also as another one made of the same data set."""

    def begin_run(self, run: Planned) -> None:
        """Records from here on for this run."""

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now: its next batch goes on with it."""

    def end_run(self, status: str, error: str) -> None:
        """Ends the run: the next batch begins another one."""


class RunSequence:
    """The runs of this process, one after another."""

    def __init__(self, recording: Callable[[], RunRecorder]) -> None:
        self._recording = recording
        self._current: Planned | None = None
        self.any_begun = False
        """Whether any watched loader was looped over, to train."""

    def planned(self, watched: Any, loader: Any, name: str, *, quiet: bool) -> Planned:
        """Returns the run that iterating over `watched` will begin; `watched` is `loader` or a proxy of it."""
        current = self._current
        replaces = current is not None and current.name == name and current.owner() is not None
        arguments = (type(loader), *(attribute(loader, argument) for argument in ARGUMENTS))
        run = Planned(name, quiet, arguments, weakref.ref(watched), replaces)
        self._recording().plan(run)
        return run

    def take(self, run: Planned, iterator: Any) -> None:
        """Makes `run` the current run, where it should be, as a batch of its loader is requested."""
        if run.iterator is not None and run.iterator() is iterator:
            return
        import torch

        if run.passive or not torch.is_grad_enabled():
            return
        if run.over:
            run.passive = True
            self._say_over(run)
            return
        if not takes_part():
            run.passive = True
            return
        looped_over = None if self._current in (None, run) else self._current.iterator
        if looped_over is not None and looped_over() is not None:
            return  # a loader inside the loop over the one that trains
        self._follow(run)
        run.iterator = weakref.ref(iterator)

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
            self._recording().end_run(*how_it_ended(error))

    def end_cell(self, result: Any) -> None:
        """Pauses the run when a notebook's cell has ended, with IPython's `result`."""
        if self._current is not None and not os.environ.get(SOCKET):
            error = getattr(result, "error_before_exec", None)
            error = error or getattr(result, "error_in_exec", None)
            self._recording().pause(*how_it_ended(error))

    def _follow(self, run: Planned) -> None:
        current = self._current
        self.any_begun = True
        if current is run:
            return
        if current is not None:
            current.over = True
            same = (run.name, run.arguments) == (current.name, current.arguments)
            goes_on = same and not run.replaces and current.owner() is None
            if not (goes_on or os.environ.get(SOCKET)):
                self._recording().end_run("done", "")
        self._current = run
        self._recording().begin_run(run)

    def _say_over(self, run: Planned) -> None:
        followed = ""
        if self._current is not None:
            followed = f": '{self._current.name}' was looped over after it"
        say(
            f"not watching '{run.name}' any more{followed}. A validation loop belongs under "
            "torch.no_grad(); to begin another run, call vitprof.watch() again"
        )


def takes_part() -> bool:
    """Returns whether this process is the first of its job, which is watched, or counts steps for it."""
    return is_recorded() or bool(os.environ.get(SOCKET) and os.environ.get(STEPS))


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns status and error of a run whose loop ended with `error`, or without one."""
    if error is None:
        return "done", ""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", ""
    return "failed", f"the script ended with {one_line(telling(error))}"
