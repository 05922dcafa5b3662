"""From what a script asks of its DataLoaders to steps: which loader trains, where a step begins and where it ends."""

from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from vitprof.watch.guard import Guard
from vitprof.watch.timed import FetchTimes

STEPS = "VITPROF_WATCH_STEPS"
"""Names the number of steps after which the script is ended."""
DETACH = "VITPROF_WATCH_DETACH_AFTER"
"""Names the number of steps after which it goes on unobserved."""
WARMUP_STEPS = 5
ITER_AND_NEXT_S = 0.001
"""A first batch that is asked for this soon after `iter(loader)` waited for that, too: workers are started there."""


class EnoughSteps(SystemExit):
    """Ends the script after the steps that were asked for, as `sys.exit(0)` in its own loop would."""


class Seen:
    """A DataLoader that was iterated over."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        """Its arguments."""
        self.begun = (0.0, math.nan)
        """How long it took to begin its last iteration, and when that was done; until its first batch is asked for."""
        self.alive: tuple[weakref.ref[Any], ...] = ()
        """Itself, and its last iterator."""

    @property
    def is_alive(self) -> bool:
        """Returns whether it can still give a batch."""
        return any(ref() is not None for ref in self.alive)


class Loop:
    """Steps of the script's training.

    The train loader is the first one that is iterated while gradients are on and an optimizer steps. A step runs from
    one request for a batch of it to the next one, or to the first request of a loader without gradients (validation).
    Batches of other loaders with gradients on belong to the step that is under way.
    """

    def __init__(self, guard: Guard, clock: Callable[[], float] = perf_counter) -> None:
        self._guard, self._clock = guard, clock
        self.forking = threading.Lock()
        """Held while workers are forked, and by the thread that sends."""
        self._session: Any = None
        self._recorder: Any = None
        self._device: Any = None
        self._ours: Seen | None = None
        """The train loader, or the candidate for it."""
        self._seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
        """What is known of each loader, and of each iterator: of a loader made in a `for` that is all there is left."""
        self._confirmed = False
        self._held: list[Any] = []
        """Rows of a candidate, until an optimizer steps."""
        self._marks: Any = None
        """Of the step under way."""
        self._asked_s = math.nan
        self._queue_depth = math.nan
        self._validating_since = math.nan
        self._step = self._epoch = 0
        self._end_after = int(os.environ.get(STEPS) or 0)
        self._detach_after = int(os.environ.get(DETACH) or 0)

    # what the loaders tell

    def beginning(self, loader: Any, now: float) -> None:
        """An iteration over `loader` begins: validation is over, where it is the train loader."""
        if self._is_ours(loader):
            self._end_step(now)
            self._end_validation(now)

    def begun(self, loader: Any, iterator: Any, took_s: float) -> None:
        """An iteration over `loader` has begun, which took so long: workers are started there."""
        if loader not in self._seen:
            from vitprof.watch.session import loader_facts

            self._seen[loader] = Seen(loader_facts(loader))
        seen = self._seen[iterator] = self._seen[loader]
        seen.alive = (weakref.ref(loader), weakref.ref(iterator))
        seen.begun = (took_s, self._clock())
        self._epoch += seen is self._ours and self._step > 0

    def asked(self, iterator: Any, now: float) -> None:
        """The script asks for a batch: the step before ends here."""
        import torch

        if not torch.is_grad_enabled():
            if self._ours is not None and not self._is_ours(iterator):
                self._end_step(now)
                if math.isnan(self._validating_since):
                    self._validating_since = now
            return
        if not self._is_ours(iterator):
            if iterator not in self._seen or (self._confirmed and self._ours is not None and self._ours.is_alive):
                return
            self._take(self._seen[iterator])
        self._end_step(now)
        if self._enough():
            return
        self._end_validation(now)
        self._queue_depth = _ready(iterator)
        assert self._ours is not None
        took_s, ready = self._ours.begun
        self._ours.begun = (0.0, math.nan)
        self._asked_s = self._clock()  # what came before it here is our own cost
        if ready <= now < ready + ITER_AND_NEXT_S:
            self._asked_s -= took_s

    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """The batch that was asked for is here: its step begins."""
        if math.isnan(self._asked_s) or not self._is_ours(iterator):
            return
        from vitprof.engine.batch import BatchTimes
        from vitprof.engine.recorder import StepMarks

        mark = self._device.mark()
        self._marks = marks = StepMarks()
        marks.step, marks.epoch, marks.samples = self._step, self._epoch, _n_samples(batch)
        marks.t_start, marks.t_got = self._asked_s, now
        marks.copy_start = marks.copy_end = marks.compute_start = mark
        marks.decoded = marks.prepared = None
        marks.loss = _no_loss
        marks.warmup = self._step < WARMUP_STEPS
        marks.made = None
        if times is not None:
            dataset_s, transform_s, collate_s, start_s, end_s, worker = times
            number = math.nan if worker < 0 else float(worker)
            read_s = max(0.0, dataset_s - transform_s)
            made = BatchTimes(read_s, math.nan, transform_s, collate_s, start_s, end_s, number, self._queue_depth)
            marks.made = made
        self._asked_s = math.nan
        self._step += 1

    def left_empty(self, iterator: Any) -> None:
        """No batch came: the iteration is over, or failed."""
        self._asked_s = math.nan

    def close(self) -> None:
        """Ends the watching, and sends what there is."""
        self._detach_after = self._end_after = 0
        if self._session is not None:
            self._session.close()

    # which loader trains

    def _is_ours(self, loader_or_iterator: Any) -> bool:
        return self._ours is not None and self._seen.get(loader_or_iterator) is self._ours

    def _take(self, seen: Seen) -> None:
        """This loader is the candidate from here on; after a train loader that is gone, it is the next epoch's."""
        if self._session is None:
            self._open()
        if self._confirmed:
            self._end_step(self._clock())
            self._epoch += 1
        else:
            self._held.clear()
            self._marks = None
            self._step = self._epoch = 0
        self._ours = seen
        self._recorder.resume()

    def _open(self) -> None:
        """The first batch of a loop with gradients: what had to wait until PyTorch was there is done now."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from vitprof.engine.devices import open_device
        from vitprof.engine.recorder import StepRecorder
        from vitprof.watch.session import Session

        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        name = f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu"
        self._device = open_device(name, self._clock)
        self._recorder = StepRecorder(self._device, self._hand_on)
        self._session = Session(self._guard, self.forking)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        atexit.register(self._guard, self._leave)

    def _optimizer_stepped(self, *_: Any) -> None:
        if not self._confirmed and self._marks is not None:
            self._guard(self._confirm)

    def _confirm(self) -> None:
        """An optimizer has stepped between two batches of the candidate: it is the train loader."""
        assert self._ours is not None
        self._confirmed = True
        self._session.begin(self._device, self._ours.facts)
        for row in self._held:
            self._session.step(row)
        self._held.clear()

    # steps

    def _end_step(self, now: float) -> None:
        marks, self._marks = self._marks, None
        if marks is None:
            return
        marks.t_launched = now
        marks.compute_end = self._device.mark()
        self._recorder.step(marks)

    def _end_validation(self, now: float) -> None:
        if not math.isnan(self._validating_since):
            self._recorder.resume()
            self._session.phase("evaluate", self._validating_since, now)
            self._validating_since = math.nan

    def _hand_on(self, row: tuple[float, ...]) -> None:
        (self._session.step if self._confirmed else self._held.append)(row)

    def _enough(self) -> bool:
        """Ends the watching, or the script, after the steps that were asked for."""
        if not self._confirmed:
            return False
        if self._detach_after and self._step >= self._detach_after:
            self._guard.given_up = True
            self._leave()
            return True
        if self._end_after and self._step >= self._end_after:
            self._guard.given_up = True
            self._leave()
            raise EnoughSteps(0)
        return False

    def _leave(self) -> None:
        """At the script's end: what the device has passed is sent; the step under way has no end."""
        if self._recorder is not None and self._confirmed:
            self._recorder.resolve()
        self.close()


def _no_loss() -> float:
    return math.nan


def _ready(iterator: Any) -> float:
    """Batches that workers have delivered and nobody has taken; NaN where the loop makes its own."""
    from vitprof.engine.loaders.ready import n_ready

    return n_ready(iterator)


def _n_samples(batch: Any) -> int:
    """Samples of a batch: the length of the first tensor in it, in whatever containers; 0 where there is none."""
    import torch

    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if isinstance(batch, dict) or hasattr(batch, "values"):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((n for n in map(_n_samples, batch) if n), 0)
    return 0
