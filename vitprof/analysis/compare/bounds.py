"""Bounds on runs: which are met, which are missed, and how many more runs or steps would decide the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.bootstrap import (
    BOOTSTRAP_BLOCKS,
    MIN_BLOCKS,
    UNKNOWN,
    Interval,
    block_sums,
    ratio_interval,
    ratio_of,
)
from vitprof.analysis.thresholds import EPOCH_STARTS_FRAC, MIN_STEPS
from vitprof.analysis.timing.steady import steady_state, wall_clock_weights
from vitprof.analysis.tournament.scores import NORMAL_975, student_t, variance_of_one
from vitprof.analysis.verdict.headroom import ROUNDING_FRAC
from vitprof.formats import number

FIGURE_STEPS: tuple[str, ...] = ("step", "epoch", "warmup", "t_start_s", "step_s", "gap_s", "data_wait_s", "samples")
"""Step columns that figures are computed from."""


@dataclass(frozen=True)
class Figure:
    """A figure with its 95% interval."""

    value: float
    """Over the steady steps; of several runs their mean (the geometric mean for throughputs)."""
    low: float
    """Lower end of the interval; NaN where it is not known."""
    high: float
    """Upper end of the interval; NaN where it is not known."""
    n_runs: int
    """Runs behind it; for a slowdown those of both sides."""
    n_steps: int
    """Their steady steps."""
    between_runs: bool
    """Whether the interval includes the noise from run to run, as it does with more than one run on a side."""
    steps_missing: int = 0
    """Steady steps that the shortest run is short of for an interval."""

    @property
    def known(self) -> bool:
        """Returns whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def share(runs: Sequence[Series], column: str) -> Figure:
    """Returns `column` (seconds of each step) as a share, 0..1, of the steady time. Needs a run."""
    parts = [_steady(steps, column, "step_s") for steps in runs]
    if len(parts) == 1:
        found = ratio_interval(*parts[0])
        wider = _widening(*parts[0])
        low, high = found.value - wider * (found.value - found.low), found.value + wider * (found.high - found.value)
    else:
        found = _over_runs(np.array([_ratio(part, whole) for part, whole in parts]))
        low, high = found.low, found.high
    return _of(runs, Interval(found.value, *(float(end) for end in np.clip((low, high), 0, 1))))


def throughput(runs: Sequence[Series]) -> Figure:
    """Returns the samples/s of the steady steps. Needs a run."""
    return _of(runs, _rate(runs))


def slowdown(runs: Sequence[Series], baseline: Sequence[Series]) -> Figure:
    """Returns the share by which the samples/s of `runs` are below those of `baseline`; negative if they are faster.

    With one run on each side, the interval is made from those within the two runs. With more it is that of Student's
    two-sample t on logarithms: both sides do the same job on the same machine, so their runs are taken to scatter
    alike, and even a single run can be compared with several.
    """
    if len(runs) == len(baseline) == 1:
        ratio = ratio_of(_rate(runs), _rate(baseline))
    else:
        mine, base = _logs(runs), _logs(baseline)
        difference, half = float(mine.mean() - base.mean()), two_sample_half(spread(mine, base), len(mine), len(base))
        ratio = Interval(*(math.exp(difference + way) for way in (0.0, -half, half)))
    return _of([*runs, *baseline], Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low), sides=2)


def run_spread(runs: Sequence[Series], column: str | None) -> float:
    """Returns the standard deviation from run to run of a share, or of log samples/s (None). Needs two runs."""
    values = _logs(runs) if column is None else np.array([_ratio(*_steady(s, column, "step_s")) for s in runs])
    return float(values.std(ddof=1))


def log_spread(runs: Sequence[Series], baseline: Sequence[Series]) -> float:
    """Returns the standard deviation from run to run of log samples/s, pooled over both sides. Needs three runs."""
    return spread(_logs(runs), _logs(baseline))


def spread(mine: Floats, base: Floats) -> float:
    """Returns the pooled standard deviation of two samples with at least three values together."""
    squares = ((mine - mine.mean()) ** 2).sum() + ((base - base.mean()) ** 2).sum()
    return math.sqrt(float(squares) / (len(mine) + len(base) - 2))


def one_sample_half(deviation: float, n: int) -> float:
    """Returns half of the 95% interval of the mean of n values with this standard deviation."""
    return student_t(n - 1) * deviation / math.sqrt(n)


def two_sample_half(deviation: float, n: int, m: int) -> float:
    """Returns half of the 95% interval of the difference of the means of n and m values that scatter alike."""
    return student_t(n + m - 2) * deviation * math.sqrt(1 / n + 1 / m)


def wall_clock_value(runs: Sequence[Series], column: str | None, baseline: Sequence[Series] = ()) -> float:
    """Returns a share, samples/s (`column` None) or, with a baseline, a slowdown over the wall clock of training: epoch
    starts counted, as the steady figures do not.
    """
    ratios = [_ratio(*_weighted(s, column or "samples", "step_s")) for s in runs]
    value = float(np.mean(ratios)) if column else math.exp(float(np.mean(np.log(ratios))))
    return 1 - value / wall_clock_value(baseline, None) if baseline else value


def n_steady(steps: Series) -> int:
    """Returns the number of steps that figures are computed from."""
    return int((steady_state(steps) & np.isfinite(steps["step_s"])).sum())


def _of(runs: Sequence[Series], interval: Interval, sides: int = 1) -> Figure:
    """Returns the figure, without an interval if a run is too short for one."""
    counts = [n_steady(steps) for steps in runs]
    missing = max(0, MIN_STEPS - min(counts))
    low, high = (math.nan, math.nan) if missing else (interval.low, interval.high)
    return Figure(interval.value, low, high, len(runs), sum(counts), len(runs) > sides, missing)


def _rate(runs: Sequence[Series]) -> Interval:
    if len(runs) == 1:
        parts = _steady(runs[0], "samples", "step_s")
        value, low, high = ratio_interval(*parts)
        if not low > 0:
            return Interval(value, math.nan, math.nan)
        wider = _widening(*parts)
        return Interval(value, value * (low / value) ** wider, value * (high / value) ** wider)
    return Interval(*(math.exp(value) for value in _over_runs(_logs(runs))))


def _logs(runs: Sequence[Series]) -> Floats:
    rates = np.array([_ratio(*_steady(steps, "samples", "step_s")) for steps in runs])
    return np.asarray(np.log(np.where(rates > 0, rates, np.nan)))


def _widening(part: Floats, whole: Floats) -> float:
    """Returns the factor by which to widen the block bootstrap's interval of sum(part) / sum(whole).

    By itself that is too narrow with few blocks, and where blocks resemble their neighbours, as single steps do. It is
    widened as Student's t would be, and to the largest variance of single blocks, pairs and fours.
    """
    blocks = min(BOOTSTRAP_BLOCKS, len(whole))
    if blocks < MIN_BLOCKS:
        return math.nan
    off = block_sums(part - _ratio(part, whole) * whole, blocks)  # the terms of the ratio's error
    one = variance_of_one(off, 1)
    alike = max(1.0, *(variance_of_one(off, group) / one for group in (2, 4))) if one > 0 else 1.0
    return student_t(blocks - 1) / NORMAL_975 * math.sqrt(blocks / (blocks - 1) * alike)


def _over_runs(values: Floats) -> Interval:
    """Returns the mean of at least two values with the 95% interval of Student's t."""
    if not np.isfinite(values).all():
        return UNKNOWN
    mean, half = float(values.mean()), one_sample_half(float(values.std(ddof=1)), len(values))
    return Interval(mean, mean - half, mean + half)


def _steady(steps: Series, part: str, whole: str) -> tuple[Floats, Floats]:
    keep = steady_state(steps) & np.isfinite(steps[whole])
    return steps[part][keep], steps[whole][keep]


def _weighted(steps: Series, part: str, whole: str) -> tuple[Floats, Floats]:
    weights = np.where(np.isfinite(steps[whole]), wall_clock_weights(steps), 0.0)
    counted = weights > 0
    return (steps[part] * weights)[counted], (steps[whole] * weights)[counted]


def _ratio(part: Floats, whole: Floats) -> float:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else math.nan


Kind = Literal["max_idle", "max_data_wait", "min_samples_per_s", "max_slowdown"]
Outcome = Literal["met", "missed", "undecided", "refused"]

COLUMNS: dict[Kind, str] = {"max_idle": "gap_s", "max_data_wait": "data_wait_s"}
"""Bounds on a share of the time -> the column of seconds that the share is of."""
TITLES: dict[Kind, str] = {
    "max_idle": "device idle",
    "max_data_wait": "data wait",
    "min_samples_per_s": "throughput",
    "max_slowdown": "against the baseline",
}
MOST_MORE_RUNS = 30
"""If it takes more runs than this, a bound is too close to be decided by measuring."""
MOST_MORE_STEPS = 100_000
"""The same for steps."""


@dataclass(frozen=True)
class Bound:
    """A bound that runs must keep."""

    kind: Kind
    limit: float
    """max_idle and max_data_wait: a share of the time, 0..1. min_samples_per_s: samples/s. max_slowdown: the share,
    0..1, by which the throughput may be lower than the baseline's."""

    @property
    def title(self) -> str:
        """Returns the bound in words: "device idle at most 10%"."""
        return f"{TITLES[self.kind]} {self.limit_words}"

    @property
    def limit_words(self) -> str:
        """Returns the limit in words: "at most 10%"."""
        if self.kind == "min_samples_per_s":
            return f"at least {self.limit:,.10g} samples/s"
        return f"at most {self.limit * 100:.10g}%" + (" slower" if self.kind == "max_slowdown" else "")


@dataclass(frozen=True)
class Judged:
    """The outcome of a bound, with the figure behind it."""

    bound: Bound
    outcome: Outcome
    """met or missed: the whole 95% interval is on that side of the limit. undecided: it is on both sides, or not known.
    refused: the runs cannot be judged."""
    figure: Figure | None
    """None if refused."""
    reason: str = ""
    """If refused, why; if undecided, what would decide it; else empty."""

    @property
    def sentence(self) -> str:
        """Returns what was measured, its interval and the bound, in one line."""
        if self.figure is None:
            return f"{self.bound.title}: {self.reason}"
        words = f"{TITLES[self.bound.kind]} {_measured(self.bound.kind, self.figure)}, {self.bound.limit_words}"
        return f"{words}; {_rests_on(self.figure)}" + (f"; {self.reason}" if self.reason else "")


def judge_bound(bound: Bound, runs: Sequence[Series], baseline: Sequence[Series] = ()) -> Judged:
    """Returns whether `runs` keep the bound.

    Each run is the (n,) columns `FIGURE_STEPS` of its steps. Needs at least one run, and for max_slowdown one in
    `baseline`.
    """
    baseline = baseline if bound.kind == "max_slowdown" else ()
    if baseline:
        figure = slowdown(runs, baseline)
    elif bound.kind == "min_samples_per_s":
        figure = throughput(runs)
    else:
        figure = share(runs, COLUMNS[bound.kind])
    if not figure.known:
        missing = figure.steps_missing
        wants = f"{missing} more steady steps are needed" if missing else "the times of its steps are not known"
        return Judged(bound, "undecided", figure, wants)
    outcome = _outcome(bound, figure.low, figure.high)
    if outcome == "undecided":
        return Judged(bound, outcome, figure, _what_would_decide(bound, figure, runs, baseline))
    whole = wall_clock_value(runs, COLUMNS.get(bound.kind), baseline)
    if _outcome(bound, whole, whole) != outcome and abs(whole - figure.value) >= EPOCH_STARTS_FRAC * (
        figure.value if bound.kind == "min_samples_per_s" else 1
    ):
        between, all_in_all = (_amount(bound.kind, value) for value in (figure.value, whole))
        reason = f"epochs begin with long waits: {all_in_all} over the wall clock of training, {between} without them"
        return Judged(bound, "refused", None, reason)
    return Judged(bound, outcome, figure)


def _outcome(bound: Bound, low: float, high: float) -> Outcome:
    """Returns the outcome of a bound for a figure with this interval."""
    rounding = ROUNDING_FRAC * bound.limit  # on a simulated device steps are all alike
    least = bound.kind == "min_samples_per_s"
    if low >= bound.limit - rounding if least else high <= bound.limit + rounding:
        return "met"
    return "missed" if (high < bound.limit if least else low > bound.limit) else "undecided"


def _what_would_decide(bound: Bound, figure: Figure, runs: Sequence[Series], baseline: Sequence[Series]) -> str:
    """Returns about how many more runs or steps would put the interval on one side of the limit at this figure."""
    too_close = "too close to the bound to be decided by measuring more; set the bound farther away"
    above = figure.value > bound.limit
    distance, reach = (
        abs(figure.value - bound.limit),
        figure.value - figure.low if above else figure.high - figure.value,
    )
    if not figure.between_runs:
        factor = (reach / distance) ** 2 if distance > 0 else math.inf
        more = figure.n_steps / (1 + len(baseline)) * (factor - 1)
        if more > MOST_MORE_STEPS:
            return too_close
        each = " in each run" if baseline else ""
        return f"about {max(1, math.ceil(more)):,} more steps{each} would decide it"
    if bound.kind == "max_slowdown":
        deviation = log_spread(runs, baseline)
        distance = abs(math.log((1 - figure.value) / (1 - bound.limit)))
    elif bound.kind == "min_samples_per_s":
        deviation, distance = run_spread(runs, None), abs(math.log(figure.value / bound.limit))
    else:
        deviation = run_spread(runs, COLUMNS[bound.kind])
    return _more_runs(deviation, distance, len(runs), len(baseline)) or too_close


def _more_runs(deviation: float, distance: float, n: int, m: int) -> str:
    """Returns how many more runs bring half of the interval below `distance`; "" if that would be too many.

    There are `n` runs, and `m` of the baseline (0: there is none). The next run is always of the side with fewer runs.
    """
    new_n, new_m = n, m
    for _ in range(MOST_MORE_RUNS):
        if not m or new_n <= new_m:
            new_n += 1
        else:
            new_m += 1
        half = two_sample_half(deviation, new_n, new_m) if m else one_sample_half(deviation, new_n)
        if half <= distance:
            side = f" and {_runs(new_m - m)} of the baseline" if new_m > m else ""
            mine = f"{_runs(new_n - n)}{side}" if new_n > n else f"{_runs(new_m - m)} of the baseline"
            return f"about {mine} would decide it"
    return ""


def _runs(n: int) -> str:
    return f"{n} more run{'' if n == 1 else 's'}"


def _measured(kind: Kind, figure: Figure) -> str:
    low = number(figure.low) if kind == "min_samples_per_s" else _amount(kind, figure.low)
    high = number(figure.high) if kind == "min_samples_per_s" else _amount(kind, figure.high)
    return f"{_amount(kind, figure.value)} (95%: {f'{low} to {high}' if figure.known else 'not known'})"


def _amount(kind: Kind, value: float) -> str:
    if kind == "min_samples_per_s":
        return number(value, "samples/s")
    return _slower(value) if kind == "max_slowdown" else _percent(value)


def _percent(share: float) -> str:
    return f"{share * 100:.1f}%" if math.isfinite(share) else "n/a"


def _slower(share: float) -> str:
    return f"{_percent(abs(share))} {'faster' if share < 0 else 'slower'}" if math.isfinite(share) else "n/a"


def _rests_on(figure: Figure) -> str:
    runs = "1 run" if figure.n_runs == 1 else f"{figure.n_runs} runs"
    noise = "" if figure.between_runs else ", run-to-run noise not in it"
    return f"n = {figure.n_steps:,} steps of {runs}{noise}"
