"""Records the steps of a plain loop with as little work between them as can be.

A loop is plain where each step is one batch and the work on it, on the CPU. Then what happens in a step needs no
decision, so that its times are only written down; the thread that sends makes rows of them, many at once. Anything else
that happens ends that, and `Loop` and `Steps` go on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from vitprof.watch.fetch_times import MAKING, FetchTimes, unpacked

if TYPE_CHECKING:
    from vitprof.watch.loop import Loop
    from vitprof.watch.step_buffer import StepBuffer


class Fetched(NamedTuple):
    """A batch as it is noted. What is not known is NaN; for speed it is also given as a plain tuple, in this order."""

    t_start: float
    """When it was requested, in seconds on the loop's clock."""
    t_got: float
    """When it was returned."""
    samples: float
    queue_depth: float
    """The number of batches that were ready when it was requested."""
    dataset_s: float
    """This and the rest: how it was made, as the first six of `FetchTimes`."""
    transform_s: float
    collate_s: float
    start_s: float
    end_s: float
    worker: float


UNKNOWN = (math.nan,) * 7
SHORT = 32
"""A loop that is plain for fewer steps than this at a time gains nothing by it."""
SHORT_TIMES = 8
"""After so many short times, the loop is not taken for plain again."""


def fetched(asked_s: float, got_s: float, samples: int, queue_depth: float, times: FetchTimes | None) -> Fetched:
    """Returns a batch as it is noted; `times`: how it was made, None if not known."""
    return Fetched(asked_s, got_s, samples, *(UNKNOWN if times is None else (queue_depth, *times[:6])))


def times_of(batch: Fetched) -> FetchTimes | None:
    """Returns how a batch was made, without its transforms; None if that is not known."""
    return None if math.isnan(batch[4]) else (*batch[4:], ())


class PlainSteps:
    """The steps of the train loader's iterator while the loop is plain."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.on = False
        """True while the loop is plain."""
        self.worked = False
        """True once the current step has worked on its batch."""
        self._short_times = 0
        self._since = 0
        """The number of the step with which the loop became plain."""

    @property
    def worth_trying(self) -> bool:
        """Returns whether the loop may be taken for plain: it was not plain for a few steps only, again and again."""
        return self._short_times < SHORT_TIMES

    def enter(self, iterator: Callable[[], Any], recording: StepBuffer, epoch: int, batch: Fetched) -> None:
        """Begins with the step of a batch that has just been returned.

        `iterator` returns the train loader's iterator, or None where that is gone.
        """
        import torch

        from vitprof.measure.batch_times import n_ready
        from vitprof.watch.batches import n_samples

        self._n_samples, self._gradients_are_on, self._kind = n_samples, torch.is_grad_enabled, torch.Tensor
        self._n_ready = n_ready if hasattr(iterator(), "_task_info") else None  # None without workers
        self.iterator, self._recording = iterator, recording
        self._block = recording.plain_block(epoch)
        self._add, self._add_transforms = self._block.add, recording.transforms.add
        self._batch: tuple[float, ...] = batch
        self._loss, self.worked = math.nan, False
        self._asked_s = self._depth = math.nan
        self._since = recording.n
        self.on = True

    def fetch(self, iterator: Any, following: Callable[[Any], Any], otherwise: Callable[[Any], Any]) -> Any:
        """Returns the next batch of the iterator; `following(iterator)` gets it, `otherwise(iterator)` where the loop
        has done something else than to work on the last one.
        """
        if not (self.worked and self._gradients_are_on()):
            return otherwise(iterator)
        depth = math.nan
        if self._n_ready is not None:
            self._depth = depth = self._n_ready(iterator)
        MAKING.times = None
        self._asked_s = asked = perf_counter()
        try:
            batch = following(iterator)
        except BaseException:
            loop = self._loop
            loop.guard(loop.left_empty, iterator, perf_counter())
            raise
        got = perf_counter()
        batch, times = unpacked(batch)
        if not self.on:  # the loop did something else while it waited
            self._loop.guard(self._loop.given, iterator, got, batch, times)
            return batch
        try:
            samples = self._n_samples(batch)
            self._add((*self._batch, asked, self._loss))
            self._recording.n += 1
            if times is None:
                self._batch = (asked, got, samples, *UNKNOWN)
            else:
                dataset_s, transform_s, collate_s, start_s, made_s, worker, transforms = times
                self._batch = asked, got, samples, depth, dataset_s, transform_s, collate_s, start_s, made_s, worker
                if samples:
                    self._add_transforms((transforms, samples))
        except Exception as error:
            self._loop.guard.give_up(f"{type(error).__name__}: {error}")
        self._loss, self.worked, self._asked_s = math.nan, False, math.nan
        return batch

    def backward(self, differentiated: Any) -> None:
        """Takes the beginning of a backward pass, from one or several losses."""
        self.worked = True
        if isinstance(differentiated, (list, tuple)):
            differentiated = differentiated[0] if len(differentiated) == 1 else None
        if type(differentiated) is self._kind and differentiated.is_cpu and differentiated.numel() == 1:
            try:
                self._loss = float(differentiated.item())
            except Exception as error:
                self._loop.guard.give_up(f"{type(error).__name__}: {error}")

    def leave(self) -> None:
        """Hands the current step, and a request that is under way, back to the loop. Does nothing where it is not
        plain.
        """
        if not self.on:
            return
        self.drop()
        self._short_times += self._recording.n - self._since < SHORT
        self._loop.reopen(Fetched(*self._batch), self._loss, worked=self.worked)
        if not math.isnan(self._asked_s):
            self._loop.asked_before(self.iterator(), self._asked_s, self._depth)

    def drop(self) -> None:
        """Ends it without the current step. May be called in any thread."""
        if self.on:
            self.on = False
            self._recording.close_block(self._block, self._batch[0])
