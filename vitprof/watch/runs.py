"""Decides which run a watched loader belongs to in a script that watches itself: when a run begins and ends.

There is one run at a time. It begins with the first batch that is requested with gradients on. Iterating again over the
same loader is the next epoch; so is iterating over another loader with the same name and arguments that was made after
the first was gone, as in `for batch in vitprof.watch(DataLoader(...))` in each epoch. Iterating over any other watched
loader, outside the first one's loop, ends the run and begins a new one. With the command `vitprof watch` around the
script there is only one run.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from vitprof.names import tamed_name
from vitprof.watch.loaders import generic_facts
from vitprof.watch.patching import SOCKET, STEPS, is_watched_rank
from vitprof.watch.send import Wanted, how_it_ended
from vitprof.watch.watcher import the_watcher

ARGUMENTS = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
"""Arguments that loaders of one run share: two that differ in one of these are two experiments."""


@dataclass(eq=False)
class Planned:
    """The run of a loader that was passed to `vitprof.watch`."""

    wanted: Wanted
    arguments: tuple[Any, ...]
    """The loader's type and its `ARGUMENTS`."""
    facts: dict[str, Any]
    """See `loaders.loader_facts`."""
    owner: weakref.ref[Any]
    """The watched loader that `vitprof.watch` returned."""
    replaces: bool
    """Whether the loader of the current run then had the same name and still existed: this is another run."""
    passive: bool = False
    """Whether it is not watched, or no longer."""
    over: bool = False
    """Whether another run has followed this one."""
    iterator: weakref.ref[Any] | None = field(default=None)
    """The iterator of the current loop over it; None where that is over."""

    @property
    def under_way(self) -> bool:
        """Returns whether a loop over it is running."""
        return self.iterator is not None and self.iterator() is not None

    def goes_on_with(self, other: Planned) -> bool:
        """Returns whether it is the next epoch of the run `other`, whose loader is gone."""
        same = self.wanted.name == other.wanted.name and self.arguments == other.arguments
        return same and not self.replaces and other.owner() is None


class Runs:
    """The runs of this process, one after another."""

    def __init__(self) -> None:
        self._current: Planned | None = None
        self._planned_any = False

    def planned(self, watched: Any, loader: Any, name: str, *, quiet: bool) -> Planned:
        """Returns the run that iterating over `watched` will begin; `watched` is `loader` or a proxy of it."""
        current, name = self._current, tamed_name(str(name))
        wanted = Wanted(name, quiet)
        replaces = current is not None and current.wanted.name == name and current.owner() is not None
        arguments = (type(loader), *(getattr(loader, argument, None) for argument in ARGUMENTS))
        facts = generic_facts(loader)
        watcher = the_watcher()
        watcher.loaders.declare(watched, None if watched is loader else facts)
        watcher.wanted = watcher.wanted or wanted
        if not self._planned_any:
            self._planned_any = True
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
            followed = "" if self._current is None else f": '{self._current.wanted.name}' was looped over after it"
            sys.stderr.write(
                f"vitprof: not watching '{run.wanted.name}' any more{followed}. A validation loop belongs under "
                "torch.no_grad(); to begin another run, call vitprof.watch() again\n"
            )
            return
        if not takes_part():
            run.passive = True
            return
        if self._current is not None and self._current is not run and self._current.under_way:
            return  # a loader beside the one that trains
        self._follow(run)
        run.iterator = weakref.ref(iterator)

    def _follow(self, run: Planned) -> None:
        """Makes `run` the one that is recorded, if it is not so already."""
        current = self._current
        if current is not None and current is not run:
            current.over = True
            if os.environ.get(SOCKET) or run.goes_on_with(current):
                the_watcher().loaders.let_go()
            else:
                the_watcher().pause("done", "", over=True)
        self._current = run
        the_watcher().wanted = run.wanted

    def left(self, run: Planned) -> None:
        """Notes that the loop over the loader of `run` is over."""
        run.iterator = None

    def begun(self, loader: Any, name: str, *, quiet: bool) -> Planned:
        """Returns the run of a DataLoader that a framework trains on from here on; its hooks report its batches."""
        run = self.planned(loader, loader, name, quiet=quiet)
        if takes_part():
            self._follow(run)
        return run

    def end(self, run: Planned, error: BaseException | None = None) -> None:
        """Ends the watching of a loader, with the error that ended the run, if any."""
        run.passive = True
        if run is self._current and not os.environ.get(SOCKET):
            self._current = None
            the_watcher().pause(*how_it_ended(error), over=True)

    def _say_unused(self) -> None:
        """Says at the end of a script that none of its watched loaders was ever trained on, if that is so."""
        failed = getattr(sys, "last_value", None) is not None
        if not the_watcher().has_begun and not failed and "torch" in sys.modules and is_first_rank():
            sys.stderr.write(
                "vitprof: nothing was recorded: no loader that vitprof.watch() returned was looped over with gradients "
                "on. Watch what the loop gets, such as the loader that accelerator.prepare() returned\n"
            )

    def end_cell(self, result: Any) -> None:
        """Pauses the run when a notebook's cell has ended, with IPython's `result`."""
        if self._current is not None and not os.environ.get(SOCKET):
            error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
            the_watcher().pause(*how_it_ended(error))


RUNS = Runs()


def takes_part() -> bool:
    """Returns whether this process is watched, or counts steps: the first process of a distributed job does.

    The others only count, where all have to end after the same step.
    """
    return is_first_rank() or bool(os.environ.get(SOCKET) and os.environ.get(STEPS))


def is_first_rank() -> bool:
    """Returns whether this process is rank 0 of its job, as far as that is known yet."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank()) == 0
    return is_watched_rank()
