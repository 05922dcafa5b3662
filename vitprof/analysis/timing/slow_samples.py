"""Which samples take several times as long as the others, and what the training would gain without them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.timing.loader_queue import LEAST_STEPS, MOST_STEPS, queue_of, without
from vitprof.analysis.timing.steady import training

MOST_REMOVED = 20
"""Samples that the estimated gain leaves out, at most."""
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

    @property
    def slowest(self) -> SlowSample:
        return max(self.listed, key=lambda sample: sample.longest_s)

    @property
    def sentence(self) -> str:
        """Returns what is worth saying of them; empty where they cost little."""
        if not self.saved_frac >= WORTH_SAYING:
            return ""
        slowest = self.slowest
        took = f"{formats.seconds(slowest.longest_s)}, {slowest.ratio:,.0f} times the median"
        name = slowest.words
        who = "it" if self.removed == 1 else f"the {self.removed} slowest samples"
        waits = formats.percent(self.waits_frac)
        return (
            f"{name[0].upper()}{name[1:]} takes {took}. Without {who} about {waits} of the waits "
            f"for data would go, and {formats.percent(self.saved_frac)} of the time."
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
    waits_frac, saved_frac = _gain(removed, median_s, facts, environment, steps)
    return SlowSamples(
        timed=int(fact["timed"]),
        median_s=median_s,
        p99_s=float(fact["p99_s"]),
        listed=tuple(_sample(one, median_s) for one in listed),
        removed=len(removed),
        waits_frac=waits_frac,
        saved_frac=saved_frac,
    )


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


def _gain(
    removed: Sequence[Mapping[str, Any]],
    median_s: float,
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    steps: Series,
) -> tuple[float, float]:
    """Returns the shares of the waits and of the time that go without those samples; NaN where the run's loader
    is not one whose queue is known."""
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
    excess_s = _excess(removed, median_s, steps["step"][-len(queue.made_s) :])
    was = queue.replay
    left = without(queue, excess_s).replay
    waited_s = float(was.waits_s[counted].sum())
    if not waited_s > 0:
        return 0.0, 0.0
    waits_frac = 1 - float(left.waits_s[counted].sum()) / waited_s
    return waits_frac, 1 - left.took_s(counted) / was.took_s(counted)


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
