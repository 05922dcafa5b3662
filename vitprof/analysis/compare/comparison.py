"""Finished runs side by side: speeds against a baseline, and where the mean step's time goes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vitprof.analysis import faster
from vitprof.analysis.arrays import Floats, Interval, Mask, known
from vitprof.analysis.compare.guard import Trust
from vitprof.analysis.intervals import ratio_interval
from vitprof.analysis.timing.gaps import IDLE_CAUSES, Gaps
from vitprof.recording.columns import RunSummary

Relation = Literal[
    "baseline", "faster", "slower", "equal", "undecided", "unknown", "not firm", "not comparable"
]


@dataclass(frozen=True)
class RunComparison:
    """A run's throughput against the baseline's."""

    speed_up: float
    """samples_per_s over that of the baseline; NaN where either is not known."""
    low: float
    """Lower end of its 95% interval (`faster.of_intervals`); NaN where a run has none."""
    high: float
    relation: Relation
    """What the ratio's interval says (`faster.relation`). equal: all of it is within 5% of 1.
    faster or slower: it is on one side of 1. undecided: neither, so the difference may be noise.
    unknown: a speed or an interval is missing. not firm: the ratio may come from other programs or
    conditions. not comparable: the runs are unlike, so there is no ratio."""


UNKNOWN = RunComparison(math.nan, math.nan, math.nan, "unknown")
NOT_COMPARABLE = RunComparison(math.nan, math.nan, math.nan, "not comparable")


def slowest(summaries: Sequence[RunSummary | None]) -> int | None:
    known = [
        (s.samples_per_s, at)
        for at, s in enumerate(summaries)
        if s is not None and s.samples_per_s > 0
    ]
    return min(known)[1] if known else None


def against(
    summaries: Sequence[RunSummary | None], baseline: int | None, trusts: Sequence[Trust]
) -> list[RunComparison]:
    """Returns each run's throughput relative to the run at position `baseline`, in the order
    given.

    `trusts`: how far each run's ratio can be trusted (`guard.trust_of`); an unlike one has none.
    """
    base = summaries[baseline] if baseline is not None else None
    compared = []
    for at, (summary, trust) in enumerate(zip(summaries, trusts, strict=True)):
        if at == baseline and summary and summary.samples_per_s > 0:
            compared.append(RunComparison(1.0, 1.0, 1.0, "baseline"))
        elif trust == "unlike":
            compared.append(NOT_COMPARABLE)
        else:
            gain = _compared(summary, base)
            if trust != "fair" and gain.relation != "unknown":
                gain = replace(gain, relation="not firm")
            compared.append(gain)
    return compared


def _compared(s: RunSummary | None, base: RunSummary | None) -> RunComparison:
    if s is None or base is None or not (s.samples_per_s > 0 and base.samples_per_s > 0):
        return UNKNOWN
    speed = Interval(s.samples_per_s, s.samples_per_s_low, s.samples_per_s_high)
    other = Interval(base.samples_per_s, base.samples_per_s_low, base.samples_per_s_high)
    gain = faster.of_intervals(speed, other)
    if not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return RunComparison(*gain, "unknown")
    return RunComparison(*gain, faster.relation(gain))


@dataclass(frozen=True)
class StepTime:
    """What the mean steady step's time on the device goes into."""

    samples: float
    seconds: Mapping[str, float]
    """Mean seconds of a step by "compute" (without launch bubbles where these are known),
    "launch_idle" and `IDLE_CAUSES`; they add up to the whole step."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The same with their 95% intervals (`with_intervals`); empty where these were not asked for."""

    @property
    def whole_s(self) -> float:
        return sum(self.seconds.values())

    def scaled(self, unit: str) -> dict[str, float]:
        """Returns the parts in a `unit`: "step" (ms a step), "sample" (us a sample) or "share"
        (percent)."""
        scale, per = {
            "step": (1e3, 1.0),
            "sample": (1e6, self.samples),
            "share": (100.0, self.whole_s),
        }[unit]
        return {
            name: seconds * (scale / per if per > 0 else math.nan)
            for name, seconds in self.seconds.items()
        }


def step_time(gaps: Gaps, samples: float) -> StepTime | None:
    """Returns the mean step of a run whose steps have `samples` samples on average; None if no
    step's time is known."""
    n = len(gaps.index)
    if not n or not gaps.span_ns:
        return None
    bubbles = float(gaps.launches_s.sum())
    parts = {"compute": gaps.busy_ns / 1e9 - bubbles, "launch_idle": bubbles}
    parts |= {cause: gaps.seconds(cause) for cause in IDLE_CAUSES}
    return StepTime(samples, {name: seconds / n for name, seconds in parts.items()})


def with_intervals(time: StepTime, gaps: Gaps, starts: Mask) -> StepTime:
    """Returns the mean step with the intervals of its parts; `gaps` are those it was made of, and
    `starts` says which of them begin an epoch, (n,)."""
    launches_s = gaps.launches_s
    compute_s = gaps.compute_ns / 1e9
    parts = {cause: gaps.by_step(cause) for cause in IDLE_CAUSES}
    if len(launches_s):
        compute_s = compute_s - launches_s
        parts["launch_idle"] = launches_s
    parts["compute"] = compute_s
    one = np.ones(len(gaps.index))
    found = {name: ratio_interval(each, one, starts) for name, each in parts.items()}
    return replace(time, intervals=found)


@dataclass(frozen=True)
class Change:
    """By how much a part of a step's time differs between two runs."""

    cause: str
    """compute, launch_idle or one of `IDLE_CAUSES`."""
    by: Interval
    """Milliseconds a step, or microseconds a sample, that it takes more than in the baseline, with
    its 95% interval; below 0 it takes less."""


SMALL_FRAC = 0.005
"""Share of the baseline's step below which a change is not worth a bar."""


def changes(base: StepTime, other: StepTime, unit: Literal["step", "sample"]) -> list[Change]:
    """Returns what a step of `other` takes more or less time for than one of `base`, the largest
    change first.

    Compute is always among them: that it stays the same says as much as that it does not.
    """
    of_base = base.scaled(unit)
    of_other = other.scaled(unit)
    small = SMALL_FRAC * sum(of_base.values())
    made = []
    for cause in of_base:
        value = of_other[cause] - of_base[cause]
        if cause != "compute" and abs(value) < small:
            continue
        reach = math.hypot(_reach(base, cause, unit), _reach(other, cause, unit))
        made.append(Change(cause, Interval(value, value - reach, value + reach)))
    return sorted(made, key=lambda change: -abs(change.by.value))


def _reach(time: StepTime, cause: str, unit: str) -> float:
    """Returns how far the mean of a part may be off, in the unit; NaN where that is not known."""
    found = time.intervals.get(cause)
    if found is None:
        return 0.0 if not time.seconds[cause] else math.nan
    scale = 1e3 if unit == "step" else 1e6 / time.samples
    return max(found.high - found.value, found.value - found.low) * scale


MAX_POINTS = 400
"""Points of a curve at most: more than a chart is pixels high, and 3 kB a run."""


@dataclass(frozen=True)
class Distribution:
    """An empirical distribution function, thinned for a chart; its figures are those of all
    values.
    """

    n: int
    values: Floats
    """(m,) ascending, each one that occurred, with the smallest and the largest."""
    share: Floats
    """(m,) exact share of all values that are at most this one, 0 to 1; the last is 1."""
    median: float
    p95: float
    largest: float


def distribution(values: Floats, *, max_points: int = MAX_POINTS) -> Distribution:
    """Returns the distribution of `values` ((n,), NaN is ignored).

    If there are more than `max_points`, half of the points are spread evenly over the ranks, so the
    curve between two is off by at most 2 / `max_points`, and half get denser towards the largest
    value: a long tail keeps its shape.
    """
    ordered = np.sort(known(values))
    n = len(ordered)
    if not n:
        none = np.empty(0)
        return Distribution(0, none, none, math.nan, math.nan, math.nan)
    ranks = np.arange(n)
    if n > max_points:
        even = np.linspace(0, n - 1, max_points // 2)
        tail = n - np.geomspace(1, n, max_points // 2)
        ranks = np.unique(np.concatenate([even, tail]).round().astype(int))
    kept = np.unique(ordered[ranks])
    share = np.searchsorted(ordered, kept, side="right") / n
    return Distribution(n, kept, share, _at(ordered, 0.5), _at(ordered, 0.95), float(ordered[-1]))


def _at(ordered: Floats, share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed.

    It is on the curve, which the mean of two values may not be.
    """
    return float(ordered[max(math.ceil(share * len(ordered) - 1e-9) - 1, 0)])
