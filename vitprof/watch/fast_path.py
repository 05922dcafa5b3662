"""Notes the steps of a plain loop with as little work between them as can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitprof.watch.fetch_times import MAKING, UNKNOWN, FetchTimes, unpacked

if TYPE_CHECKING:
    from vitprof.watch.loop import Loop
    from vitprof.watch.ranks import Forward
    from vitprof.watch.watcher import Watcher

SHORT = 32
"""A loop that is plain for fewer steps than this at a time gains nothing by it."""
SHORT_TIMES = 8
"""After so many short times, the loop is not taken for plain again."""


class PlainSteps:
    """The steps of the train loader's iterator while the loop is plain."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.on, self.alone = False, True
        """Whether the loop is plain, and whether no other thread iterates over a loader."""
        self.worked = 0.0
        """When an optimizer stepped (s); 1 where a backward pass was seen after it, or only that, and 0 for neither."""
        self.forward: Forward | None = None
        """Where other ranks train, too, while the loop is plain."""
        self.short_times = 0
        """How often the loop was plain for a few steps only."""

    def enter(self, iterator: Callable[[], Any], loop: Loop, times: FetchTimes | None) -> None:
        """Begins with the step that has just begun, if it is one of a plain loop; `times`: how its batch was made."""
        step, steps = loop.step, loop.steps
        if (
            not self.alone
            or step is None
            or step.marks.samples == 0
            or self.short_times >= SHORT_TIMES
        ):
            return
        if not (steps.may_be_plain and steps.confirmed and loop.expects_work) or steps.warming_up:
            return
        import torch

        from vitprof.measure.step_columns import UNKNOWN_TIMES, n_ready
        from vitprof.watch.batches import NOTHING, n_samples, n_values
        from vitprof.watch.loop import State

        if loop.ahead is not NOTHING or step.carried:
            return
        marks = step.marks
        self.forward, self._n_values = steps.forward if steps.forward.shares else None, n_values
        self._own = (marks.made or UNKNOWN_TIMES)[-5:]
        depth = math.nan if marks.made is None else marks.made.queue_depth
        made = UNKNOWN if times is None else (depth, *times[:6])
        self._batch: tuple[float, ...] = (marks.t_start, marks.t_got, marks.samples, *made)
        self._n_samples, self._gradients_are_on, self._kind = (
            n_samples,
            torch.is_grad_enabled,
            torch.Tensor,
        )
        self._n_ready = (
            n_ready if hasattr(iterator(), "_task_info") else None
        )  # None without workers
        self.iterator, self._loop = iterator, loop
        self._block = steps.plain_block(loop.epoch)
        self._add, self._add_transforms = self._block.add, steps.transforms.add
        own = (
            self.forward
        )  # without other ranks functions in C that do nothing: they cost the least
        self._request: Callable[[], Any] = own.request if own else int
        self._received: Callable[[float], float] = own.received if own else float
        self._loss, self.worked = math.nan, 0.0
        self._preparation = self._watcher.preparation
        self._asked_s = self._depth = math.nan
        loop.step, loop.state = None, State.PLAIN
        self.on = True

    def fetch(
        self, iterator: Any, following: Callable[[Any], Any], otherwise: Callable[[Any], Any]
    ) -> Any:
        """Returns the next batch: by `following(iterator)`, or `otherwise(iterator)` where the loop is not plain."""
        if not (self.worked and self.alone and self._gradients_are_on()):
            return otherwise(iterator)
        depth = math.nan
        if self._n_ready is not None:
            self._depth = depth = self._n_ready(iterator)
        MAKING.now.times = None
        self._request()
        self._asked_s = asked = perf_counter()
        if (preparation := self._preparation).is_on:
            self._watcher.guard(preparation.ask, asked)
        try:
            batch = following(iterator)
        except BaseException:
            self._watcher.guard(self._watcher.left_empty, iterator, perf_counter())
            raise
        got = perf_counter()
        batch, times = unpacked(batch)
        if not self.on:  # the loop did something else while it waited
            self._watcher.guard(self._watcher.given, iterator, got, batch, times)
            return batch
        try:
            samples = self._n_samples(batch)
            asked = self._received(asked)
            self._add((*self._batch, *self._own, asked, self._loss))
            if self.forward is not None:
                self._own = self._n_values(batch), *self.forward.begin(asked), math.nan
            self._loop.steps.n += 1
            if preparation.skip:
                preparation.skip -= 1
            elif not preparation.is_on:
                preparation.stepped_s = self.worked if self.worked > 1 else math.nan
                preparation.begin(self._loop, asked, got)
            if times is None:
                self._batch = (asked, got, samples, *UNKNOWN)
            else:
                dataset_s, transform_s, collate_s, start_s, made_s, worker, transforms = times
                self._batch = (
                    asked,
                    got,
                    samples,
                    depth,
                    dataset_s,
                    transform_s,
                    collate_s,
                    start_s,
                    made_s,
                    worker,
                )
                if samples:
                    self._add_transforms((transforms, samples))
        except Exception as error:
            self._watcher.guard.give_up(f"{type(error).__name__}: {error}")
        self._loss, self.worked, self._asked_s = math.nan, 0.0, math.nan
        return batch

    def backward(self, differentiated: Any) -> None:
        """Takes the beginning of a backward pass, from one or several losses."""
        if self.forward is not None and not self.worked:
            self._own = (*self._own[:-1], self.forward.host_s(self._batch[1]))
        self.worked = 1.0
        if self._preparation.is_on:
            self._watcher.guard(self._preparation.work)
        if isinstance(differentiated, (list, tuple)):
            differentiated = differentiated[0] if len(differentiated) == 1 else None
        if (
            type(differentiated) is self._kind
            and differentiated.is_cpu
            and differentiated.numel() == 1
        ):
            try:
                self._loss = float(differentiated.item())
            except Exception as error:
                self._watcher.guard.give_up(f"{type(error).__name__}: {error}")

    def leave(self) -> None:
        """Gives the current step, and a request that is under way, back to the loop, if that is plain."""
        if not self.on:
            return
        from vitprof.measure.step_columns import UNKNOWN_TIMES, BatchTimes
        from vitprof.watch.batches import batch_times
        from vitprof.watch.loop import Request, State

        self.drop()
        loop, loss = self._loop, self._loss
        asked_s, got_s, samples, depth, *times = self._batch
        self.short_times += loop.steps.n - self._block.first < SHORT
        made = None if math.isnan(times[0]) else batch_times((*times, ()), depth)  # type: ignore[arg-type]
        marks = loop.begin(asked_s, got_s, int(samples), made)
        if self.forward is not None:
            marks.made = BatchTimes(*(marks.made or UNKNOWN_TIMES)[:-5], *self._own)
        marks.copy_start = marks.copy_end = marks.compute_start = got_s
        if self.worked:
            loop.state, marks.loss = State.WORKED, lambda: loss
            if self.worked > 1 and loop.step is not None:
                loop.step.stepped, loop.step.updated = (self.worked, self.worked), 0
        if not math.isnan(self._asked_s):
            loop.end(self._asked_s)
            loop.state, loop.requested = (
                State.WAITING,
                Request(self._asked_s, 0.0, 0.0, self._depth),
            )

    def drop(self) -> None:
        """Ends it without the current step. May be called in any thread."""
        if self.on:
            self.on = False
            self._loop.steps.close_block(self._block, self._batch[0])
