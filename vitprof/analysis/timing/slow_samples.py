"""Which samples take several times as long as the others, whether they are every k-th, and what the training would gain
without them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series, column
from vitprof.analysis.timing.loader_queue import MOST_STEPS, without_excess
from vitprof.analysis.timing.periods import Period, period_of

MOST_REMOVED = 20
"""Samples that the estimated gain leaves out, at most."""
FROM_MEDIANS = (4.0, 8.0, 16.0)
"""Medians from which samples are looked at for a period: where the machine is busy, some of the others take a few
medians, by chance."""
ROUNDING = 1e-6
WORTH_SAYING = 0.02
"""Share of the training's time from which a gain is said in a sentence: the error of a replay is of
that size. A list has all samples."""


@dataclass(frozen=True)
class SlowSample:
    """A sample that is slow."""

    index: int
    """In the dataset."""
    times: int
    """How often it was slow."""
    longest_s: float
    total_s: float
    ratio: float
    """Its longest time over the median of all samples."""
    file: str
    """The file that it was read from; empty where that was not seen."""
    file_bytes: int | None

    @property
    def words(self) -> str:
        """Returns its name with file and size: "sample 481 (img/0481.jpg, 24 MB)"."""
        known = [PurePath(self.file).name] if self.file else []
        if self.file_bytes is not None:
            known.append(formats.size(self.file_bytes))
        where = f" ({', '.join(known)})" if known else ""
        return f"sample {self.index:,}{where}"


@dataclass(frozen=True)
class SlowSamples:
    """The slow samples of a run, and what it would gain without the slowest of them."""

    timed: int
    """Samples that were timed."""
    median_s: float
    p99_s: float
    listed: tuple[SlowSample, ...]
    """Those that took longest in all come first."""
    removed: int
    """How many of them the two figures below are without: as fast as the median."""
    waits_frac: float
    """Share of the data wait that would be saved; NaN where it is not known."""
    saved_frac: float
    """Share of the training time that would be saved; NaN where it is not known."""
    period: Period | None = None
    """The period of their indices, where every k-th is slow."""
    period_s: float = math.nan
    """The mean time of slow samples, known to 10%."""
    period_waits_frac: float = math.nan
    """Shares without all slow samples, where they have a period."""
    period_saved_frac: float = math.nan

    @property
    def slowest(self) -> SlowSample:
        return max(self.listed, key=lambda sample: sample.longest_s)

    @property
    def sentence(self) -> str:
        """Returns what is worth saying of them; empty where they cost little."""
        if self.period is not None and self.period_saved_frac >= WORTH_SAYING:
            gain = _gain_in_words("all of them", self.period_waits_frac, self.period_saved_frac)
            return f"{self.period_words} {gain}"
        if not self.saved_frac >= WORTH_SAYING:
            return ""
        slowest = self.slowest
        took = f"{formats.seconds(slowest.longest_s)}, {slowest.ratio:,.0f} times the median"
        name = slowest.words
        who = "it" if self.removed == 1 else f"the {self.removed} slowest samples"
        gain = _gain_in_words(who, self.waits_frac, self.saved_frac)
        return f"{formats.capitalised(name)} takes {took}. {gain}"

    @property
    def period_words(self) -> str:
        """Returns which samples are slow, where it is every k-th; empty else."""
        if self.period is None:
            return ""
        took = formats.seconds(self.period_s)
        ratio = f"{self.period_s / self.median_s:,.0f} times the median"
        every = formats.ordinal(self.period.every)
        return (
            f"Every {every} sample ({self.period.examples} and so on) takes about {took}, {ratio}."
        )

    @property
    def costs_frac(self) -> float:
        """Returns the share of the time that goes without what the sentence names; NaN where it is not known."""
        return (
            self.saved_frac if self.period is None else max(self.saved_frac, self.period_saved_frac)
        )


def _gain_in_words(who: str, waits_frac: float, saved_frac: float) -> str:
    return (
        f"Without {who} about {formats.percent(waits_frac)} of the waits for data would go, and "
        f"{formats.percent(saved_frac)} of the time."
    )


def slow_samples(
    facts: Mapping[str, Any], environment: Mapping[str, Any], steps: Series
) -> SlowSamples | None:
    """Returns the slow samples of a watched run; None where its samples were not timed, or none is slow."""
    fact = facts.get("slow_samples")
    if not isinstance(fact, Mapping) or not fact.get("listed"):
        return None
    median_s = float(fact["median_s"])
    listed = fact["listed"]
    removed = listed[:MOST_REMOVED]
    excess_s = _excess(removed, median_s, steps["step"][-MOST_STEPS:])
    waits_frac, saved_frac = without_excess(excess_s, facts, environment, steps)
    found = SlowSamples(
        timed=int(fact["timed"]),
        median_s=median_s,
        p99_s=float(fact["p99_s"]),
        listed=tuple(_sample(one, median_s) for one in listed),
        removed=len(removed),
        waits_frac=waits_frac,
        saved_frac=saved_frac,
    )
    return _with_period(found, fact, facts, environment, steps)


def _with_period(
    found: SlowSamples,
    fact: Mapping[str, Any],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    steps: Series,
) -> SlowSamples:
    """Returns it with the period of the slow samples, if they have one."""
    sketch = np.array(fact.get("sketch") or [(0.0, 0)], dtype=float)
    for medians in FROM_MEDIANS:
        least_s = medians * found.median_s
        slow = sketch[sketch[:, 0] >= least_s * (1 - ROUNDING)]
        period = _period_from(least_s, float(slow[:, 1].sum()), found.timed, fact)
        if period is not None:
            break
    else:
        return found
    slow_s = float((slow[:, 0] * slow[:, 1]).sum())
    n_slow = float(slow[:, 1].sum())
    excess_s = slow_s - n_slow * found.median_s
    of_batches_s = _cut(steps, excess_s / found.timed)
    waits_frac, saved_frac = without_excess(of_batches_s, facts, environment, steps)
    return replace(
        found,
        period=period,
        period_s=slow_s / n_slow,
        period_waits_frac=waits_frac,
        period_saved_frac=saved_frac,
    )


def _period_from(
    least_s: float, n_slow: float, timed: int, fact: Mapping[str, Any]
) -> Period | None:
    """Returns the period of the samples that take at least so long, of which the sketch has `n_slow`."""
    indices = np.array(fact.get("indices") or (), dtype=np.int64)
    times = np.array(fact.get("indices_times") or (), dtype=np.int64)
    is_slow = np.array(fact.get("indices_longest_s") or (), dtype=float) >= least_s
    # a worker names the slowest samples of a batch only, and the sketch has some that are nearly slow
    fewest, most = sorted((float(times[is_slow].sum()), n_slow))
    return period_of(indices[is_slow], fewest / timed, most / timed, tries=len(FROM_MEDIANS))


def _cut(steps: Series, excess_s: float) -> Floats:
    """Returns by how much each of the last steps' batches is made faster, (n,), if all their samples together are by
    `excess_s` each: which batches have slow samples is known of a few of these, and the longest are cut to one length.
    """
    made_s = column(steps, "made_end_s") - column(steps, "made_start_s")
    made_s = np.nan_to_num(made_s[-MOST_STEPS:])
    to_cut_s = min(excess_s * float(steps["samples"][-MOST_STEPS:].sum()), float(made_s.sum()))
    falling = np.sort(made_s)[::-1]
    above = np.cumsum(falling) - falling * np.arange(1, len(falling) + 1)
    n = int(np.searchsorted(above, to_cut_s, side="right"))
    level_s = (float(falling[:n].sum()) - to_cut_s) / n
    return np.maximum(0.0, made_s - level_s)


def _sample(one: Mapping[str, Any], median_s: float) -> SlowSample:
    longest_s = max(one["longest_s"])
    return SlowSample(
        index=int(one["index"]),
        times=int(one["times"]),
        longest_s=longest_s,
        total_s=float(one["total_s"]),
        ratio=longest_s / median_s,
        file=str(one["file"]),
        file_bytes=one["file_bytes"],
    )


def _excess(removed: Sequence[Mapping[str, Any]], median_s: float, numbers: Floats) -> Floats:
    """Returns how much longer than a usual sample the removed ones took in each step, (n,)."""
    excess_s = np.zeros(len(numbers))
    place = {int(number): at for at, number in enumerate(numbers.tolist())}
    for one in removed:
        for took_s, step in zip(one["longest_s"], one["steps"], strict=True):
            at = place.get(int(step))
            if at is not None:
                excess_s[at] += took_s - median_s
    return excess_s
