"""From what a script asks of its DataLoaders to steps: which loader trains, where a step begins and where it ends."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitprof.watch.guard import Guard
from vitprof.watch.loaders import UNKNOWN, Begun, Loaders, Seen
from vitprof.watch.on_import import STEPS
from vitprof.watch.timed import FetchTimes, made_between

if TYPE_CHECKING:
    from vitprof.watch.session import Wanted
    from vitprof.watch.steps import Steps  # needs PyTorch, which is half imported when this is

DETACH = "VITPROF_WATCH_DETACH_AFTER"
"""Names the number of steps after which it goes on unobserved."""
ITER_AND_NEXT_S = 0.05
"""A first batch that is asked for this soon after `iter(loader)` waited for that, too: workers are started there.

Forked workers may get the CPU before the script goes on."""

HEADROOM = "VITPROF_WATCH_HEADROOM"
"""Set where batches are given again, to measure headroom."""


class EnoughSteps(SystemExit):
    """Ends the script after the steps that were asked for, as `sys.exit(0)` in its own loop would."""


class Loop:
    """Steps of the script's training.

    The train loader is the first one that is iterated while gradients are on and an optimizer steps. A step runs from
    one request for a batch of it to the next one after the script worked on it, or to the first request of a loader
    without gradients (validation). Batches of other loaders with gradients on belong to the step that is under way.
    """

    def __init__(self, guard: Guard, clock: Callable[[], float] = perf_counter) -> None:
        self.guard, self._clock = guard, clock
        self.told: Any = self
        """Who is told of what loaders do: while a batch of something around a loader is awaited it is somebody else."""
        self.wanted: Wanted | None = None
        """What a script that watches itself asks for."""
        self.loaders = Loaders()
        self.forking = threading.RLock()
        """Held while workers are forked, and by the thread that sends. Beginning an iteration may begin another one."""
        self._steps: Steps | None = None
        """None until a loader is iterated with gradients on."""
        self._ours: Seen | None = None
        """The train loader, or the candidate for it."""
        self._paused = False
        """Whether the run is over for now."""
        self._entered = 0
        """Steps that the script has entered and not left."""
        self._tells = False
        """Whether the script's backward passes and its optimizer tell of themselves."""
        self._asked_s = math.nan
        """When the batch was asked for, after what we had to do first."""
        self._own_s = self._begun_s = 0.0
        """How long that took, and how long it took to begin the iteration, where this is its first batch."""
        self._validating_since = math.nan
        self._epoch = 0
        self._kept: Any = None
        """The batch that takes the place of the one that is asked for."""
        self._end_after = int(os.environ.get(STEPS) or 0)
        self._detach_after = int(os.environ.get(DETACH) or 0)

    def forget(self) -> None:
        """In a forked process, such as a worker: it is not the one that is watched, whatever it does with loaders."""
        self.guard.given_up = True
        self.forking = threading.RLock()
        if self._steps is not None:
            self._steps.recording.forget()
        self._steps = None

    # what a script says that watches itself

    def let_go(self) -> None:
        """The next loader that was declared goes on with the run."""
        if self._ours is not None:
            self._ours.alive = ()

    def pause(self, status: str, error: str) -> None:
        """The run is over for now: the next batch goes on with it. What is between belongs to nothing."""
        if self._steps is not None:
            self._steps.pause(status, error)
            self._paused = True
            self._validating_since = math.nan

    def start_over(self) -> None:
        """Ends the run: the next batch begins another one."""
        if self._steps is not None:
            self._steps.pause("done", "")
            self._steps.leave()
        self._steps = self._ours = None
        self._paused = False
        self._asked_s = self._validating_since = math.nan
        self._epoch = 0

    @property
    def has_begun(self) -> bool:
        """Returns whether any loader was taken for the one that trains."""
        return self._tells

    def enter_step(self) -> None:
        """The script begins what it calls a step. One inside another is part of it."""
        self._entered += 1
        if self._steps is not None and self._entered == 1:
            self._steps.enter(self._clock())

    def leave_step(self) -> None:
        """The script has done what it calls a step."""
        self._entered -= 1
        if self._steps is not None and not self._entered:
            self._steps.left(self._clock())

    # what the loaders tell

    def beginning(self, loader: Any, now: float) -> None:
        """An iteration over `loader` begins: validation is over, where it is the train loader."""
        if self._steps is not None and self._is_ours(loader):
            self._steps.end(now)
            self._end_validation(self._steps, now)

    def begun(self, loader: Any, iterator: Any, since_s: float, until_s: float) -> None:
        """An iteration over `loader` has begun, between these moments: workers are started there."""
        seen = self.loaders.begun(loader, iterator)
        if seen is self._ours and self._steps is not None:
            self._steps.begin_epoch()
            self._epoch += self._steps.recording.n > 0
        seen.begun = Begun(since_s, until_s, self._clock())

    def asked(self, iterator: Any, now: float) -> None:
        """The script asks for a batch: the step before ends here."""
        import torch

        self._kept = None

        if not torch.is_grad_enabled():
            if self._steps is not None and not self._is_ours(iterator) and not self._paused:
                self._steps.end(now)
                if math.isnan(self._validating_since):
                    self._validating_since = now
            return
        if not self._is_ours(iterator) and not self._take(iterator):
            if self._steps is not None:
                self._steps.ask_other(now)
            return
        assert self._steps is not None
        assert self._ours is not None
        self._steps.end(now)
        if self._paused:
            self._paused = False
            self._steps.recording.begin_again()
            self._steps.resume()
        if self._enough(self._steps):
            return
        self._end_validation(self._steps, now)
        self._steps.ask(iterator)
        self._kept = self._steps.kept_batch()
        self._begun_s = 0.0
        begun, self._ours.begun = self._ours.begun, UNKNOWN
        if begun.told_s <= now < begun.told_s + ITER_AND_NEXT_S:
            self._begun_s, now = begun.until_s - begun.since_s, begun.until_s
        self._asked_s = self._clock()
        self._own_s = self._asked_s - now

    def take_kept(self) -> Any:
        """Returns the batch that the script gets in place of a new one; None where it gets a new one."""
        kept, self._kept = self._kept, None
        return kept

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """The batch that was asked for is here: its step begins."""
        if math.isnan(self._asked_s) or self._steps is None or not self._is_ours(iterator):
            return
        if not self._steps.recording.confirmed and self._ours is not None and self._ours.declared:
            self._confirm(self._steps, self._ours, batch)
        self._steps.begin(self._epoch, self._waits_since(times), now, batch, times)
        self._asked_s = math.nan

    def left_empty(self, iterator: Any, now: float) -> None:
        """No batch came: the iteration is over, or failed."""
        if not math.isnan(self._asked_s) and self._steps is not None and self._is_ours(iterator):
            self._steps.begin_last(self._epoch, self._waits_since(None), now)
        self._asked_s = math.nan

    def _waits_since(self, times: FetchTimes | None) -> float:
        """Returns when the script would have begun to wait, if it were not watched, as seen from the batch's arrival.

        Our own cost is left out, but for the part of it in which a worker was not done with the batch.
        """
        since = self._asked_s - self._begun_s
        return since if times is None else since - made_between(times, self._asked_s - self._own_s, self._asked_s)

    def close(self) -> None:
        """Ends the watching, and sends what there is."""
        if self._steps is not None:
            self._steps.close()

    # which loader trains

    def _is_ours(self, loader_or_iterator: Any) -> bool:
        ours = self._ours
        if ours is None:
            return False
        return ours.is_last(loader_or_iterator) or self.loaders.of(loader_or_iterator) is ours

    def _take(self, iterator: Any) -> bool:
        """Takes the loader of `iterator` as the candidate; after a train loader that is gone, it is the next epoch's.

        Returns False where another one is the train loader, or nothing is known of this one.
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
        """The first batch of a loop with gradients: what had to wait until PyTorch was there is done now."""
        import torch

        from vitprof.engine.devices import open_device
        from vitprof.watch import work
        from vitprof.watch.steps import Steps

        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        device = open_device(f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu", self._clock)
        if not self._tells:
            self._tells = True
            work.install(self._guarded(self._backward), self._guarded(self._scaled), self._guarded(self._stepped))
            atexit.register(self.guard, self._leave)
        return Steps(device, self.guard, self.forking, self.wanted)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        return functools.partial(self.guard, function)

    def _backward(self, differentiated: Any) -> None:
        if self._steps is not None:
            self._steps.backward(differentiated)

    def _scaled(self, loss: Any, result: Any) -> None:
        if self._steps is not None:
            self._steps.scaled(loss, result)

    def _stepped(self) -> None:
        steps = self._steps
        if steps is None:
            return
        steps.optimizer_stepped(self._clock())
        if not steps.recording.confirmed and steps.under_way and self._ours is not None:
            self._confirm(steps, self._ours)

    def _confirm(self, steps: Steps, ours: Seen, batch: Any = None) -> None:
        """What is recorded is training."""
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
        """Ends the watching, or the script, after the steps that were asked for."""
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
        """At the script's end, or when it was watched for long enough."""
        if self._steps is not None:
            self._steps.leave()


@functools.cache
def the_loop() -> Loop:
    """Returns the one of this process."""
    guard = Guard()
    loop = Loop(guard)
    guard.at_end = loop.close
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=loop.forget)
    return loop
