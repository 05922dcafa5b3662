"""What a training would take if its batches were made in other times: a DataLoader's queue, replayed.

The rules are PyTorch's (`torch.utils.data.dataloader`): each worker makes its batches one after the
other, a batch is requested of its worker as the loop gets the one `workers * prefetch_factor` before
it, and batches are handed out in order. Other causes of a wait, such as workers that share too few
cores, are as they were.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column, median
from vitprof.analysis.timing.steady import first_of_epoch, training
from vitprof.config.own_script import DEFAULT_PREFETCH

LEAST_STEPS = 40
"""Fewer show too little of a queue."""
MOST_STEPS = 20_000
"""The last steps that are replayed: it takes 2 us a step."""
MOST_ERROR = 0.05
"""A replay of a run as it was must take as long as that did, up to this share, or it tells nothing."""


@dataclass(frozen=True)
class Replay:
    """When the steps of a training end by the rules of the queue, (n,) each."""

    waits_s: Floats
    """The wait for each batch."""
    ends_s: Floats
    """When the work on each batch is over, on the host and on the device."""

    def took_s(self, counted: Mask) -> float:
        """Returns how long the steps from the first to the last that counts take together."""
        first, *_, last = np.flatnonzero(counted).tolist()
        before_s = self.ends_s[first - 1] if first else 0.0
        return float(self.ends_s[last] - before_s)


@dataclass(frozen=True)
class LoaderQueue:
    """A training's batches in order, (n,) each, as a queue needs them."""

    epoch_starts: Ints
    """Positions of the batches that begin an epoch."""
    starting_s: Floats
    """From an epoch's first request to when a worker began with each: the first ones wait for workers to start."""
    idle_s: Floats
    """For how long its worker did something else before each, although it was requested, and the one before was made:
    it puts that into the queue, reads the request, and may wait for a core."""
    made_s: Floats
    """How long it took to make each."""
    worker: Ints
    """The worker that made it; -1 where the loop did."""
    handed_s: Floats
    """How long each was on its way to the loop at least."""
    received_s: float
    """How long the loop takes at least to get a batch that is there."""
    work_s: Floats
    """From the batch to the next request."""
    compute_s: Floats
    """How long an asynchronous device works on each; it may go on while the loop waits."""
    ahead: int
    """Batches that are requested before the loop gets the first of them; 0 without workers."""

    @cached_property
    def replay(self) -> Replay:
        """Returns how long the training takes by the rules of the queue."""
        n = len(self.made_s)
        waits_s = np.zeros(n)
        ends_s = np.zeros(n)
        now_s = 0.0
        device_s = 0.0
        for first, end in zip(self.epoch_starts, [*self.epoch_starts[1:], n], strict=True):
            got_s = self._received(int(first), int(end), now_s)
            for at, received_s in zip(range(first, end), got_s, strict=True):
                waits_s[at] = received_s - now_s
                now_s = received_s + self.work_s[at]
                device_s = max(device_s, received_s) + self.compute_s[at]
                ends_s[at] = max(now_s, device_s)
        return Replay(waits_s, ends_s)

    def _received(self, first: int, end: int, epoch_s: float) -> list[float]:
        """Returns when the loop gets each batch of an epoch that it begins at `epoch_s`."""
        received_s: list[float] = []
        free_s: dict[int, float] = {}
        now_s = epoch_s
        for at in range(first, end):
            place = at - first
            worker = int(self.worker[at])
            if not self.ahead:
                since_s = now_s
            elif worker not in free_s:
                since_s = epoch_s + self.starting_s[at]
            else:
                is_first = place < self.ahead
                requested_s = epoch_s if is_first else received_s[place - self.ahead]
                since_s = max(requested_s, free_s[worker]) + self.idle_s[at]
            free_s[worker] = since_s + self.made_s[at]
            got_s = max(now_s + self.received_s, free_s[worker] + self.handed_s[at])
            received_s.append(got_s)
            now_s = got_s + self.work_s[at]
        return received_s


def queue_of(
    steps: Series, workers: int, prefetch_factor: int | None, *, is_asynchronous: bool = False
) -> LoaderQueue | None:
    """Returns the queue of a run whose steps train on a batch each; None where its rules do not reproduce
    how long it took. `is_asynchronous`: whether the device works on while the loop waits."""
    steps = {name: values[-MOST_STEPS:] for name, values in steps.items()}
    begun_s = steps["t_start_s"]
    wait_s = steps["data_wait_s"]
    made_since_s = column(steps, "made_start_s")
    made_until_s = column(steps, "made_end_s")
    worker = np.nan_to_num(column(steps, "worker"), nan=-1.0).astype(np.int64)
    if len(begun_s) < LEAST_STEPS or (worker >= 0).all() != (workers > 0):
        return None
    received_s = begun_s + wait_s
    work_s = np.append(begun_s[1:], received_s[-1]) - received_s
    made_s = made_until_s - made_since_s
    if not np.isfinite([made_s, work_s]).all():
        return None
    starts = np.flatnonzero(first_of_epoch(steps))
    epoch_s = begun_s[starts][np.cumsum(first_of_epoch(steps)) - 1]
    is_late = made_until_s > begun_s  # the loop waited for it
    handed_s = np.full(len(made_s), _usual(received_s - made_until_s, is_late))
    if not workers:
        handed_s = np.maximum(0.0, wait_s - made_s)  # what the loop does itself around the making
    ahead = workers * (prefetch_factor or DEFAULT_PREFETCH)
    queue = LoaderQueue(
        epoch_starts=starts,
        starting_s=np.maximum(0.0, made_since_s - epoch_s),
        idle_s=_idle(starts, worker, made_since_s, made_until_s, received_s, ahead),
        made_s=np.maximum(made_s, 0.0),
        worker=worker,
        handed_s=handed_s,
        received_s=_usual(wait_s, ~is_late) if workers else 0.0,
        work_s=np.maximum(work_s, 0.0),
        compute_s=np.nan_to_num(steps["compute_s"]) * is_asynchronous,
        ahead=ahead,
    )
    took_s = float(received_s[-1] - begun_s[0])
    error_s = abs(float(queue.replay.ends_s[-1]) - took_s)
    return queue if error_s <= MOST_ERROR * took_s else None


def _idle(
    starts: Ints,
    worker: Ints,
    made_since_s: Floats,
    made_until_s: Floats,
    received_s: Floats,
    ahead: int,
) -> Floats:
    """Returns for how long the worker of each batch was idle before it, although it had a request, (n,)."""
    n = len(worker)
    idle_s = np.zeros(n)
    if not ahead:
        return idle_s
    for first, end in itertools.pairwise([*starts.tolist(), n]):
        before: dict[int, int] = {}
        for at in range(first, end):
            made_before = before.get(int(worker[at]))
            before[int(worker[at])] = at
            if made_before is None:
                continue
            requested_s = received_s[at - ahead] if at - first >= ahead else -math.inf
            ready_s = max(requested_s, made_until_s[made_before])
            idle_s[at] = max(0.0, made_since_s[at] - ready_s)
    return idle_s


def _usual(seconds: Floats, chosen: Mask) -> float:
    """Returns the median of those chosen, which is no time where there are none."""
    usual_s = median(seconds[chosen])
    return max(0.0, usual_s) if math.isfinite(usual_s) else 0.0


def without(queue: LoaderQueue, excess_s: Floats) -> LoaderQueue:
    """Returns the queue with each batch made by so much faster, (n,) seconds."""
    return replace(queue, made_s=np.maximum(queue.made_s - excess_s, 0.0))


def without_excess(
    excess_s: Floats, facts: Mapping[str, Any], environment: Mapping[str, Any], steps: Series
) -> tuple[float, float]:
    """Returns the shares of the waits and of the time that go where the last steps' batches are made by `excess_s`
    faster, (n,); NaN where the run's loader is not one whose queue is known."""
    unknown = (math.nan, math.nan)
    watched = environment.get("watched") or {}
    is_one_loader = not facts.get("loaders") and not facts.get("iterators_at_once")
    if not is_one_loader or not watched.get("in_order", True):
        return unknown
    queue = queue_of(
        steps,
        int(watched.get("num_workers") or 0),
        watched.get("prefetch_factor"),
        is_asynchronous=environment.get("device", "cpu") != "cpu",
    )
    counted = training(steps)[-MOST_STEPS:]
    if queue is None or counted.sum() < LEAST_STEPS:
        return unknown
    was = queue.replay
    left = without(queue, excess_s).replay
    waited_s = float(was.waits_s[counted].sum())
    if not waited_s > 0:
        return 0.0, 0.0
    waits_frac = 1 - float(left.waits_s[counted].sum()) / waited_s
    return waits_frac, 1 - left.took_s(counted) / was.took_s(counted)
