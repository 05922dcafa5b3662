"""Finds the one worker whose samples take longer than those of the others.

Workers share a machine: other programs, a full drive and the samples that chance gives make each of them slow for a
while. So batches are compared in rounds, one batch of each worker that were made at about the same time, by the
logarithm of the seconds a sample. A worker is named where

1. without what is far off (`usual_differences`), it is slower than the mean of the others by `SLOWER_RATIO`, with an
   interval whose lower end is above `SURELY_RATIO`, and slower than each other one by an interval, too; the intervals
   allow for neighbours that are alike;
2. it is the slowest in each quarter of the rounds: what lasts for a while is no property of a worker;
3. the others are alike;
4. the median of its samples, where they are timed one by one, is longer as well: one that was given the slow samples
   is no slow worker.

Of runs whose workers are alike it names one in fewer than 1 of 100, those with log-normal times (sigma 1) or AR(1)
up to 0.95 from 20 rounds on included (`tests/analysis/timing/test_slow_workers.py` counts them).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import intervals
from vitprof.analysis.arrays import STD_OF_MAD, Floats, Interval, Mask, Series, column, median
from vitprof.analysis.thresholds import MIN_STEPS

SLOWER_RATIO = 1.25
"""A slow worker takes at least this many times as long for a sample as the others."""
SURELY_RATIO = 1.1
"""The lower end of that ratio's interval is above this: workers of one machine differ by some percent for a whole
run, by the cores that they are on."""
FALSE_ALARMS = 0.01
"""Share of the runs with equal workers in which one may be named: the level of the interval, over all workers."""
FAR_OFF = 3.0
"""Robust standard deviations from a worker's median beyond which a batch counts as if it were just there (Winsor's
mean; Iglewicz and Hoaglin 1993 advise 3.5 for one value). A batch with a slow sample, or one that waited for a core,
takes many times as long, and says little of a worker."""
ALIKE_QUANTILE = 0.98
"""Quantile of Student's t for the noise of neighbours that are alike. With 0.95, of two workers with AR(1) 0.95 and 20
batches each one is named in 2 of 100 runs; with that of `FALSE_ALARMS`, twice as slow a worker is not named
before it has made 60."""
MIN_ROUNDS = 10
"""Batches that each worker must have made."""
QUARTERS = 4
OF_SAMPLES = 0.5
"""Share of the difference, on logarithms, that the medians of samples have at least where it is the worker: they are
known to 10% each (`watch.time_sketch`)."""
RANDOM_SAMPLERS = frozenset({"RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"})
"""PyTorch's samplers that give each worker samples by chance. A DistributedSampler may or may not."""


@dataclass(frozen=True)
class SlowWorker:
    """A worker that is slower than the others."""

    worker: int
    n_workers: int
    times_slower: Interval
    """How many times as long as the others' its samples take."""
    sample_s: float
    """The median of its samples, or of its batches, a sample."""
    others_sample_s: float
    n_batches: int
    """Batches of it that were compared."""
    is_by_chance: bool
    """Whether it got its samples by chance, so that they are no reason."""

    def excess_s(self, steps: Series) -> Floats:
        """Returns how much longer each step's batch took than by another worker, (n,)."""
        made_s = np.nan_to_num(column(steps, "made_end_s") - column(steps, "made_start_s"))
        is_its_own = column(steps, "worker") == self.worker
        return np.where(is_its_own, made_s * (1 - 1 / self.times_slower.value), 0.0)

    @property
    def sentence(self) -> str:
        """Returns what was seen, and what it may come from."""
        longer = _longer(self.times_slower, self.n_workers - 1)
        if self.is_by_chance:
            why = (
                "It gets its samples by chance, so it is the worker: look for a program that shares its core, or "
                "for what worker_init_fn does."
            )
        else:
            why = (
                "Whether it is the worker or its samples is not known, as the order of samples may not be "
                "random: look for a program that shares its core, or samples that only it gets."
            )
        return f"The samples of worker {self.worker} take {longer}. {why}"


def _longer(ratio: Interval, n_others: int) -> str:
    others = f"other {n_others}" if n_others > 1 else "other one"
    between = f"{_times(ratio.low)} to {_times(ratio.high)}"
    return f"{_times(ratio.value)} times as long as those of the {others} ({between})"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


@dataclass(frozen=True)
class SlowerBatches:
    """A worker whose batches surely take longer than those of the others, whatever the reason."""

    worker: int
    workers: tuple[int, ...]
    """All of them."""
    times_slower: Interval
    n_rounds: int

    @property
    def words(self) -> str:
        """Returns "3 times as long as those of the other 2 (2.5 to 3.5)"."""
        return _longer(self.times_slower, len(self.workers) - 1)


def slower_batches(steps: Series, keep: Mask) -> SlowerBatches | None:
    """Returns the worker whose batches in the steps `keep`, (n,) bool, take longer than those of the others, by the
    first three conditions of this module; None where none surely is."""
    made_s = _made_s_of_a_sample(steps)
    worker = column(steps, "worker")
    known = _known(steps, keep)
    if known.sum() < MIN_STEPS:
        return None
    names, rounds = rounds_of(worker[known], steps["epoch"][known], np.log(made_s[known]))
    if len(names) < 2 or len(rounds) < MIN_ROUNDS:
        return None
    found = slowest_of(rounds)
    if found is None:
        return None
    at, ratio = found
    workers = tuple(int(name) for name in names)
    return SlowerBatches(workers[at], workers, ratio, len(rounds))


def _made_s_of_a_sample(steps: Series) -> Floats:
    made_s = column(steps, "made_end_s") - column(steps, "made_start_s")
    return np.asarray(made_s / np.maximum(steps["samples"], 1))


def _known(steps: Series, keep: Mask) -> Mask:
    """Returns the steps whose worker is known, and how long it made their batch."""
    is_by_worker = np.isfinite(column(steps, "worker"))
    return np.asarray(keep & is_by_worker & (_made_s_of_a_sample(steps) > 0))


def slow_worker(
    steps: Series, keep: Mask, facts: Mapping[str, Any] | None = None
) -> SlowWorker | None:
    """Returns the worker that is slower than the others in the steps `keep`, (n,) bool; None where none surely is.

    `facts`: those of the run and its environment.
    """
    facts = facts or {}
    found = slower_batches(steps, keep)
    if found is None:
        return None
    of_samples = _medians_of_samples(facts)
    if of_samples:
        if set(of_samples) != set(found.workers):
            return None
        sample_s = np.array([of_samples[worker] for worker in found.workers])
    else:
        known = _known(steps, keep)
        made_s = _made_s_of_a_sample(steps)
        of_worker = [known & (column(steps, "worker") == worker) for worker in found.workers]
        sample_s = np.array([median(made_s[its_own]) for its_own in of_worker])
    at = found.workers.index(found.worker)
    ratio = found.times_slower
    others_s = float(np.exp(np.log(np.delete(sample_s, at)).mean()))
    if of_samples and math.log(sample_s[at] / others_s) < OF_SAMPLES * math.log(ratio.value):
        return None
    return SlowWorker(
        worker=found.worker,
        n_workers=len(found.workers),
        times_slower=ratio,
        sample_s=float(sample_s[at]),
        others_sample_s=others_s,
        n_batches=found.n_rounds,
        is_by_chance=_is_by_chance(facts),
    )


def rounds_of(worker: Floats, epoch: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Returns the workers, and `values` of their batches by round, (rounds, workers): the first batches of all in an
    epoch, the second ones, and so on."""
    names = np.unique(worker)
    rounds = []
    for number in np.unique(epoch):
        of_epoch = epoch == number
        of_each = [values[of_epoch & (worker == name)] for name in names]
        n = min(len(of_worker) for of_worker in of_each)
        rounds.append(np.stack([of_worker[:n] for of_worker in of_each], axis=1))
    return names, np.concatenate(rounds)


def slowest_of(rounds: Floats) -> tuple[int, Interval] | None:
    """Returns which column of `rounds`, (n, workers), logarithms, is surely above all others, and how many times as
    much it is; None where none is."""
    n_workers = rounds.shape[1]
    rounds = usual_differences(rounds)
    at = int(np.argmax(rounds.mean(axis=0)))
    others = np.delete(rounds, at, axis=1)
    of_others = others.mean(axis=0)
    if of_others.max() - np.median(of_others) >= math.log(SLOWER_RATIO):
        return None
    quantile = 1 - FALSE_ALARMS / n_workers
    more = _interval(rounds[:, at] - others.mean(axis=1), quantile)
    if not (more.value >= math.log(SLOWER_RATIO) and more.low > math.log(SURELY_RATIO)):
        return None
    if not all(_interval(rounds[:, at] - other, quantile).low > 0 for other in others.T):
        return None
    parts = np.array_split(rounds, QUARTERS)
    if any(int(np.argmax(part.mean(axis=0))) != at for part in parts):
        return None
    return at, Interval(*(math.exp(end) for end in more))


def usual_differences(rounds: Floats) -> Floats:
    """Returns by how much each batch differs from the median of its round, (n, workers), at most so far from what is
    usual for its worker as `FAR_OFF` says."""
    differences = rounds - np.median(rounds, axis=1, keepdims=True)
    usual = np.median(differences, axis=0)
    off = differences - usual
    reach = FAR_OFF * STD_OF_MAD * float(np.median(np.abs(off)))
    return np.asarray(usual + np.clip(off, -reach, reach))


def _interval(values: Floats, quantile: float) -> Interval:
    """Returns the mean of `values`, (n,), with its interval: the wider one of means of blocks, and of the noise that
    allows for neighbours that are alike."""
    of_blocks = intervals.interval_of_blocks(values, quantile)
    reach = float(intervals.noise_of_sum(values).reach(ALIKE_QUANTILE)) / len(values)
    if math.isnan(reach):
        return Interval(of_blocks.value, -math.inf, math.inf)
    reach = max(reach, of_blocks.value - of_blocks.low)
    return Interval(of_blocks.value, of_blocks.value - reach, of_blocks.value + reach)


def _medians_of_samples(facts: Mapping[str, Any]) -> dict[int, float]:
    """Returns the median of each worker's samples; nothing where they were not timed one by one."""
    fact = facts.get("slow_samples") or {}
    return {int(one["worker"]): float(one["median_s"]) for one in fact.get("workers") or ()}


def _is_by_chance(facts: Mapping[str, Any]) -> bool:
    watched = facts.get("watched")
    if watched is None:
        return True  # vitprof's own loaders draw the order
    return watched.get("sampler") in RANDOM_SAMPLERS
