"""Finds what is slow at every k-th position, such as the first sample of each shard."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column, median
from vitprof.formats import ordinal, seconds

MIN_TIMES = 6
"""Slow positions that a period needs."""
MIN_FRAC = 0.8
"""Share of the slow positions that are in the period; others may be slow as well, by chance."""
LIKE_SHARE = 1.3
"""A period is up to so many times as often, or as rarely, as what is slow: if fewer of its positions are slow it is not
every k-th, and most of the slow ones are in it."""
CHANCE = 1e-3
"""Probability, over all periods that are tried, with which slow positions at random would seem to have one."""
MOST_PERIODS = 20_000
"""Periods that are tried at most, the likeliest."""
SLOW_BATCH = 2.0
"""A batch is slow from so many medians on: of several samples, only some are."""


@dataclass(frozen=True, slots=True)
class Period:
    """Every `every`-th position is slow, beginning with `first`."""

    every: int
    first: int
    n: int
    """Slow positions in it."""
    n_slow: int
    """All slow positions."""

    @property
    def examples(self) -> str:
        """Returns its first positions: "37, 137, 237"."""
        return ", ".join(f"{self.first + i * self.every:,}" for i in range(3))


def period_of(
    positions: Ints, least_frac: float, most_frac: float, tries: int = 1
) -> Period | None:
    """Returns the period that slow `positions`, (n,), have; None where they have none.

    `least_frac`, `most_frac`: between these is the share of the slow ones of all that came; `tries`: how often it is
    looked for. The chance is bounded by Chernoff's inequality (Hoeffding 1963), over all periods and beginnings.
    """
    positions = np.unique(positions)
    n = len(positions)
    if n < MIN_TIMES or not 0 < least_frac <= most_frac < 1:
        return None
    tried = _tried(least_frac, most_frac)
    log_tests = math.log(tries * max(1.0, float(tried.sum())))
    most: tuple[float, Period] | None = None
    for every in tried.tolist():
        rest = np.bincount(positions % every)
        first = int(rest.argmax())
        within = int(rest[first])
        if within < MIN_TIMES or within < MIN_FRAC * n:
            continue
        surprise = n * _divergence(within / n, 1 / every) - log_tests
        if surprise > -math.log(CHANCE) and (most is None or surprise > most[0]):
            most = surprise, Period(every, first, within, n)
    return None if most is None else most[1]


def _tried(least_frac: float, most_frac: float) -> Ints:
    """Returns the periods that fit the share of what is slow, the likeliest `MOST_PERIODS`."""
    least = max(2, math.ceil(1 / most_frac / LIKE_SHARE))
    most = max(least, math.floor(1 / least_frac * LIKE_SHARE))
    periods = np.arange(least, most + 1)
    likeliest = 1 / math.sqrt(least_frac * most_frac)
    nearest = np.argsort(np.abs(np.log(periods / likeliest)), kind="stable")
    return np.sort(periods[nearest[:MOST_PERIODS]])


def _divergence(seen: float, expected: float) -> float:
    """Returns the Kullback-Leibler divergence of two shares; 0 where no more is seen than expected."""
    if seen <= expected:
        return 0.0
    others = 0.0 if seen == 1 else (1 - seen) * math.log((1 - seen) / (1 - expected))
    return seen * math.log(seen / expected) + others


@dataclass(frozen=True)
class SlowBatches:
    """Batches that are slow at every k-th position."""

    period: Period
    of: str
    """What is counted: "batch of an epoch", "batch of each worker", "batch of the run"."""
    batch_s: float
    """The median of the slow ones."""
    usual_s: float
    """The median of all."""
    excess_s: Floats
    """How much longer than usual each step's batch took where it is one of them, (n,)."""

    @property
    def sentence(self) -> str:
        """Returns which they are: "Every 8th batch of an epoch (number 0, 8, 16 and so on) takes 80 ms"."""
        which = f"Every {ordinal(self.period.every)} {self.of} (number {self.period.examples} and so on)"
        return f"{which} takes {seconds(self.batch_s)} to make, the median {seconds(self.usual_s)}."


def slow_batches(steps: Series, keep: Mask) -> SlowBatches | None:
    """Returns the batches that are slow to make at every k-th position of those in `keep`, (n,) bool; None where there
    are none, and where they are all batches of some of the workers."""
    samples = np.maximum(steps["samples"], 1)
    took_s = column(steps, "made_end_s") - column(steps, "made_start_s")
    worker = np.nan_to_num(column(steps, "worker"), nan=-1.0)
    # an iteration's first batch opens files, and fills caches
    known = keep & np.isfinite(took_s) & (_counted(steps["epoch"], worker) > 0)
    each_s = took_s / samples
    usual_s = median(each_s[known])
    n_workers = len(np.unique(worker[known]))
    if not usual_s > 0:
        return None
    slow = known & (each_s > SLOW_BATCH * usual_s)
    if not slow.any():
        return None
    slow_frac = float(slow.sum() / known.sum())
    for of, at in _positions(steps["epoch"], worker, n_workers):
        period = period_of(at[slow], slow_frac, slow_frac, tries=len(COUNTED))
        if period is None or (of != OF_WORKER and n_workers % period.every == 0):
            continue
        within = slow & (at % period.every == period.first)
        excess_s = np.where(within, took_s - usual_s * samples, 0.0)
        return SlowBatches(period, of, median(took_s[within]), median(took_s[known]), excess_s)
    return None


COUNTED = ("batch of an epoch", "batch of each worker", "batch of the run")
OF_EPOCH, OF_WORKER, OF_RUN = COUNTED


def _positions(epoch: Floats, worker: Floats, n_workers: int) -> Iterator[tuple[str, Ints]]:
    """Yields what may be counted, and the number of each step's batch by that, (n,)."""
    yield OF_EPOCH, _counted(epoch)
    if n_workers > 1:
        yield OF_WORKER, _counted(epoch, worker)
    if len(np.unique(epoch)) > 1:
        yield OF_RUN, np.arange(len(epoch))


def _counted(*groups: Floats) -> Ints:
    """Returns the number of each row among those before it that are alike in all `groups`, (n,) each."""
    _, group = np.unique(np.stack(groups), axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    numbers = np.empty(len(group), dtype=np.int64)
    numbers[order] = np.arange(len(group)) - begins
    return numbers
