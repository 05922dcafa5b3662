"""Turns a script's requests to its DataLoaders into steps: finds the train loader, and each step's begin and end."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitprof.watch.fast_path import Fetched, PlainSteps
from vitprof.watch.fetch_times import FetchTimes, made_between
from vitprof.watch.guard import Guard
from vitprof.watch.loaders import UNKNOWN, Begun, Loaders, Seen
from vitprof.watch.on_import import STEPS

if TYPE_CHECKING:
    from vitprof.watch.session import Wanted
    from vitprof.watch.steps import Steps  # needs PyTorch, which is half imported when this is

DETACH = "VITPROF_WATCH_DETACH_AFTER"
"""Environment variable: the number of steps after which the script goes on unwatched."""
ITER_AND_NEXT_S = 0.05
"""The wait for a first batch that is requested this soon (s) after `iter(loader)` includes that call, which starts the
workers. Forked workers may get the CPU before the script goes on."""

HEADROOM = "VITPROF_WATCH_HEADROOM"
"""Environment variable: set where kept batches are served again, to measure headroom."""
FETCHES_AHEAD = (
    "The script fetches batches in another thread than the one that trains, so the data wait is not the training's, "
    "and steps may be missing. Watch what the training loop iterates over: for batch in vitprof.watch(batches)"
)
"""The notice of a run whose script fetches ahead in a thread of its own."""


class EnoughSteps(SystemExit):
    """Raised to end the script after the number of steps to run, as `sys.exit(0)` in its own loop would."""


class Loop:
    """The steps of the script's training.

    The train loader is the first one that is iterated while gradients are on and an optimizer steps. A step runs from
    one request for its batch to the next request after the script has worked on the batch, or to the first request to a
    loader without gradients (validation). Batches of other loaders with gradients on belong to the current step.
    """

    def __init__(self, guard: Guard, clock: Callable[[], float] = perf_counter) -> None:
        self.guard, self._clock = guard, clock
        self.told: Any = self
        """The receiver of the loaders' events: this loop, or an `Inside` while a watched loader makes a batch."""
        self.wanted: Wanted | None = None
        """The wishes of a script that watches itself."""
        self.loaders = Loaders()
        self.plain = PlainSteps(self)
        self.forking = threading.RLock()
        """Held while workers are forked, and by the thread that sends. Reentrant: beginning an iteration may begin
        another one."""
        self._steps: Steps | None = None
        """None until a loader is iterated with gradients on."""
        self._ours: Seen | None = None
        """The train loader, or the candidate for it."""
        self._paused = False
        """Whether the run is over for now."""
        self._entered = 0
        """The number of steps that the script has entered and not left."""
        self._tells = False
        """Whether backward passes and optimizer steps are reported."""
        self._asked_s = math.nan
        """When the batch was requested, after vitprof's own work for it."""
        self._own_s = self._begun_s = 0.0
        """The time of that work, and the time to begin the iteration, where this is its first batch."""
        self._validating_since = math.nan
        self._epoch = 0
        self._kept: Any = None
        """The kept batch to serve in place of the one that is requested."""
        self._end_after = int(os.environ.get(STEPS) or 0)
        self._detach_after = int(os.environ.get(DETACH) or 0)
        self._asked_in = self._stepped_in = 0
        """The threads of the last request for a batch of the train loader, and of the optimizer's last step."""
        self._told_of_thread = False
        self._may_be_plain = not (self._end_after or self._detach_after)
        """True where steps need not be counted as they are made."""

    def forget(self) -> None:
        """Ends watching in a forked process, such as a worker: only its parent is watched."""
        self.guard.given_up = True
        self.plain.drop()
        self.forking = threading.RLock()
        if self._steps is not None:
            self._steps.recording.forget()
        self._steps = None

    # a script that watches itself

    def let_go(self) -> None:
        """Releases the train loader, so that the next declared loader continues the run."""
        self.plain.leave()
        if self._ours is not None:
            self._ours.alive = ()

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now: the next batch continues it. The time between belongs to no step."""
        self.plain.leave()
        if self._steps is not None:
            self._steps.pause(status, error)
            self._paused = True
            self._validating_since = math.nan

    def start_over(self) -> None:
        """Ends the run; the next batch begins another one."""
        self.plain.leave()
        if self._steps is not None:
            self._steps.pause("done", "")
            self._steps.leave()
        self._steps = self._ours = None
        self._paused = False
        self._asked_s = self._validating_since = math.nan
        self._epoch = 0

    @property
    def has_begun(self) -> bool:
        """Returns whether any loader that may train was iterated over with gradients on."""
        return self._tells

    def enter_step(self) -> None:
        """Begins a step that the script marks. A step inside another one is part of it."""
        self.plain.leave()
        self._entered += 1
        if self._steps is not None and self._entered == 1:
            self._steps.enter(self._clock())

    def leave_step(self) -> None:
        """Ends a step that the script marks."""
        self._entered -= 1
        if self._steps is not None and not self._entered:
            self._steps.left(self._clock())

    # events of the loaders

    def beginning(self, loader: Any, now: float) -> None:
        """Takes the beginning of an iteration over `loader`: for the train loader it ends a step and validation."""
        self.plain.leave()
        if self._steps is not None and self._is_ours(loader):
            self._steps.end(now)
            self._end_validation(self._steps, now)

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """Takes the times between which an iteration over `loader` was begun; this starts its workers."""
        seen = self.loaders.begun(loader, iterator)
        if seen is self._ours and self._steps is not None:
            self._steps.begin_epoch()
            self._epoch += self._steps.recording.n > 0
        seen.begun = Begun(since_s, until_s, self._clock())

    def asked(self, iterator: Any, now: float) -> None:
        """Takes the script's request for a batch, at which the previous step ends."""
        import torch

        self.plain.leave()
        self._kept = None
        if not torch.is_grad_enabled():
            if self._steps is not None and not self._is_ours(iterator) and not self._paused:
                self._steps.end(now)
                if math.isnan(self._validating_since):
                    self._validating_since = now
            return
        if not self._is_ours(iterator) and not self._take(iterator):
            elsewhere = self.loaders.declares and threading.get_ident() != self._asked_in
            if self._steps is not None and not elsewhere:  # there, the wait of the declared loop includes it
                self._steps.ask_other(now)
            return
        assert self._steps is not None
        assert self._ours is not None
        self._asked_in = threading.get_ident()
        self._asked_ours(self._steps, self._ours, iterator, now)

    def _asked_ours(self, steps: Steps, ours: Seen, iterator: Any, now: float) -> None:
        steps.end(now)
        if self._paused:
            self._paused = False
            steps.recording.begin_again()
            steps.resume()
        if self._enough(steps):
            return
        self._end_validation(steps, now)
        steps.ask(iterator)
        self._kept = steps.kept_batch()
        self._begun_s = 0.0
        begun, ours.begun = ours.begun, UNKNOWN
        if begun.told_s <= now < begun.told_s + ITER_AND_NEXT_S:
            self._begun_s, now = begun.until_s - begun.since_s, begun.until_s
        self._asked_s = self._clock()
        self._own_s = self._asked_s - now

    def asked_before(self, iterator: Any, then: float, queue_depth: float) -> None:
        """Takes a request for a batch that was made while the loop was plain, and is still under way."""
        if self._steps is not None and self._ours is not None:
            self._asked_ours(self._steps, self._ours, iterator, then)
            self._steps.queue_depth = queue_depth
            self._asked_s, self._own_s = then, 0.0

    def reopen(self, batch: Fetched, loss: float, *, worked: bool) -> None:
        """Goes on with the current step of a loop that was plain so far."""
        if self._steps is not None:
            self._steps.reopen(self._epoch, batch, loss, worked=worked)

    def take_kept(self) -> Any:
        """Returns the kept batch that the script gets instead of a new one; None where it gets a new one."""
        kept, self._kept = self._kept, None
        return kept

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """Takes the batch that was requested: its step begins. `times`: how it was made; None if not known."""
        if math.isnan(self._asked_s) or self._steps is None or not self._is_ours(iterator):
            return
        if not self._steps.recording.confirmed and self._ours is not None and self._ours.declared:
            self._confirm(self._steps, self._ours, batch)
        self._steps.begin(self._epoch, self._waits_since(times), now, batch, times)
        self._asked_s = math.nan
        if self._may_be_plain and self.plain.worth_trying and self._ours is not None and not self._entered:
            fetched = self._steps.set_aside(times) if self._stepped_in == self._asked_in else None
            if fetched is not None:
                self.plain.enter(self._ours.iterator, self._steps.recording, self._epoch, fetched)

    def left_empty(self, iterator: Any, now: float) -> None:
        """Takes the end of an iteration: it is over, or failed."""
        self.plain.leave()
        if not math.isnan(self._asked_s) and self._steps is not None and self._is_ours(iterator):
            self._steps.begin_last(self._epoch, self._waits_since(None), now)
        self._asked_s = math.nan

    def _waits_since(self, times: FetchTimes | None) -> float:
        """Returns when the script would have begun to wait if it were not watched, for the batch's time of arrival.

        Leaves out vitprof's own cost, except for the part in which a worker was still making the batch.
        """
        since = self._asked_s - self._begun_s
        return since if times is None else since - made_between(times, self._asked_s - self._own_s, self._asked_s)

    def close(self) -> None:
        """Ends the watching, and sends what is left. May be called in any thread."""
        self.plain.drop()
        if self._steps is not None:
            self._steps.close()

    # which loader trains

    def _is_ours(self, loader_or_iterator: Any) -> bool:
        ours = self._ours
        if ours is None:
            return False
        return ours.is_last(loader_or_iterator) or self.loaders.of(loader_or_iterator) is ours

    def _take(self, iterator: Any) -> bool:
        """Takes the loader of `iterator` as the candidate; if the train loader is gone, as that of its next epoch.

        Returns False where another one is the train loader, or this one is unknown.
        """
        seen = self.loaders.of(iterator)
        if self.loaders.declares and (seen is None or not seen.declared):
            return False
        if self._steps is None:
            self._steps = self._open()
            self._steps.inside = self._entered > 0
        if seen is None or (self._steps.recording.confirmed and self._ours is not None and self._ours.is_alive):
            return False
        if self._steps.recording.confirmed:
            self._steps.end(self._clock())
            self._epoch += 1
        else:
            self._steps.drop()
            self._epoch = 0
        self._ours = seen
        self._steps.expects_work = not seen.stands_for
        self._steps.resume()
        return True

    def _open(self) -> Steps:
        """Returns new steps, at the first batch of a loop with gradients; does what had to wait for PyTorch."""
        import torch

        from vitprof.measure.devices import open_device
        from vitprof.watch import optimizer_hooks
        from vitprof.watch.steps import Steps

        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        device = open_device(f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu", self._clock)
        if not self._tells:
            self._tells = True
            told = (self._guarded(function) for function in (self._backward, self._scaled, self._stepped))
            optimizer_hooks.install(self.plain, *told)
            atexit.register(self.guard, self._leave)
        return Steps(device, self.guard, self.forking, self.wanted)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        return functools.partial(self.guard, function)

    def _backward(self, differentiated: Any) -> None:
        if self._steps is not None:
            self._steps.backward(differentiated)

    def _scaled(self, loss: Any, result: Any) -> None:
        self.plain.leave()
        if self._steps is not None:
            self._steps.scaled(loss, result)

    def _stepped(self) -> None:
        steps = self._steps
        if steps is None:
            return
        steps.optimizer_stepped(self._clock())
        self._stepped_in = threading.get_ident()
        if not steps.recording.confirmed and steps.under_way and self._ours is not None:
            self._confirm(steps, self._ours)
        if self._asked_in not in (0, self._stepped_in) and steps.recording.confirmed and not self._told_of_thread:
            self._told_of_thread = True
            steps.recording.facts({"fetched_in_a_thread": True})
            steps.recording.notice(FETCHES_AHEAD)

    def _confirm(self, steps: Steps, ours: Seen, batch: Any = None) -> None:
        """Confirms the candidate as the train loader: what was recorded is training."""
        facts = ours.facts
        if facts.get("batch_size") is None:
            from vitprof.watch.batches import n_samples

            facts = {**facts, "batch_size": n_samples(batch) or None}
        steps.recording.confirm(facts, headroom=bool(os.environ.get(HEADROOM)))

    # ends

    def _end_validation(self, steps: Steps, now: float) -> None:
        if not math.isnan(self._validating_since):
            steps.resume()
            steps.recording.phase("evaluate", self._validating_since, now)
            self._validating_since = math.nan

    def _enough(self, steps: Steps) -> bool:
        """Ends the watching, or the script, after the number of steps to run; returns whether watching has ended.

        Raises `EnoughSteps`.
        """
        if not steps.recording.confirmed:
            return False
        ends = bool(self._end_after and steps.recording.n >= self._end_after)
        if not ends and not (self._detach_after and steps.recording.n >= self._detach_after):
            return False
        self.guard.given_up = True
        self._leave()
        if ends:
            raise EnoughSteps(0)
        return True

    def _leave(self) -> None:
        """Sends what is left, at the script's end or after enough steps."""
        self.plain.leave()
        if self._steps is not None:
            self._steps.leave()


@functools.cache
def the_loop() -> Loop:
    """Returns the loop of this process."""
    guard = Guard()
    loop = Loop(guard)
    guard.at_end = loop.close
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=loop.forget)
    return loop
