"""Bounds on runs: which are met, which are missed, and how many more runs or steps would decide the
rest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis import faster, students_t, thresholds
from vitprof.analysis.arrays import UNKNOWN, Floats, Interval, Mask, Series
from vitprof.analysis.intervals import (
    TOO_ALIKE,
    ratio_interval,
    ratio_of_sums,
    share_interval,
)
from vitprof.analysis.timing.steady import epoch_starts, steady_state, whole_epochs
from vitprof.formats import count, number

FIGURE_STEPS: tuple[str, ...] = (
    "step",
    "epoch",
    "warmup",
    "t_start_s",
    "step_s",
    "gap_s",
    "data_wait_s",
    "samples",
)


@dataclass(frozen=True)
class Figure:
    """A figure with its 95% interval."""

    value: float
    """Over the wall clock of whole epochs; of several runs their mean (the geometric mean for
    throughputs)."""
    low: float
    high: float
    n_runs: int
    """Runs behind it; for a slowdown those of both sides."""
    n_steps: int
    n_starts: int
    """Starts of later epochs in it."""
    between_runs: bool
    """Whether the interval includes the noise from run to run, as it does with more than one run on
    a side."""
    steps_missing: int = 0
    """Steady steps that the shortest run is short of for an interval."""

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def share(runs: Sequence[Series], column: str) -> Figure:
    """Returns `column` (seconds of each step) as a share, 0..1, of the wall clock of training.
    Needs a run."""
    if len(runs) == 1:
        return _of(runs, share_interval(*_counted(runs[0], column)))
    found = _over_runs(_ratios(runs, column))
    low, high = (float(end) for end in np.clip(found[1:], 0, 1))
    return _of(runs, Interval(found.value, low, high))


def throughput(runs: Sequence[Series]) -> Figure:
    return _of(runs, _rate(runs))


def slowdown(runs: Sequence[Series], baseline: Sequence[Series]) -> Figure:
    """Returns the share by which the samples/s of `runs` are below those of `baseline`, by
    `analysis.faster`; negative if they are faster.

    With one run on each side, the interval is made from those within the two runs, else from what
    runs differ by: both sides are taken to scatter alike, so even a single run can be compared with
    several.
    """
    if len(runs) == len(baseline) == 1:
        ratio = faster.of_intervals(_rate(runs), _rate(baseline))
    else:
        ratio = faster.of_runs(_logs(runs), _logs(baseline))
    return _of(
        [*runs, *baseline], Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low), sides=2
    )


def run_spread(
    runs: Sequence[Series], column: str | None, baseline: Sequence[Series] = ()
) -> float:
    return spread(
        *(_ratios(side, column) if column else _logs(side) for side in (runs, baseline) if side)
    )


def spread(*sides: Floats) -> float:
    squares = math.fsum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    return math.sqrt(squares / sum(len(side) - 1 for side in sides))


def half_interval(deviation: float, n: int, m: int = 0) -> float:
    """Returns half of the 95% interval of the mean of n values with this standard deviation, or of
    the difference to the mean of m others that scatter alike.
    """
    df = n + m - 2 if m else n - 1
    per_value = 1 / n + 1 / m if m else 1 / n
    return students_t.quantile(students_t.TWO_SIDED_95, df) * deviation * math.sqrt(per_value)


def n_steady(steps: Series) -> int:
    return int((steady_state(steps) & np.isfinite(steps["step_s"])).sum())


def _of(runs: Sequence[Series], interval: Interval, sides: int = 1) -> Figure:
    counts = [n_steady(steps) for steps in runs]
    missing = max(0, thresholds.MIN_STEPS - min(counts))
    low, high = (math.nan, math.nan) if missing else interval[1:]
    n_starts = sum(int(epoch_starts(steps).sum()) for steps in runs)
    return Figure(
        interval.value, low, high, len(runs), sum(counts), n_starts, len(runs) > sides, missing
    )


def _rate(runs: Sequence[Series]) -> Interval:
    if len(runs) > 1:
        return Interval(*(math.exp(value) for value in _over_runs(_logs(runs))))
    return ratio_interval(*_counted(runs[0], "samples"))


def _ratios(runs: Sequence[Series], column: str) -> Floats:
    return np.array([ratio_of_sums(*_counted(steps, column)[:2]) for steps in runs])


def _logs(runs: Sequence[Series]) -> Floats:
    rates = _ratios(runs, "samples")
    return np.asarray(np.log(np.where(rates > 0, rates, np.nan)))


def _over_runs(values: Floats) -> Interval:
    if not np.isfinite(values).all():
        return UNKNOWN
    mean = float(values.mean())
    half = half_interval(spread(values), len(values))
    return Interval(mean, mean - half, mean + half)


def _counted(steps: Series, column: str) -> tuple[Floats, Floats, Mask]:
    """Returns the column and the seconds of each step, as it counts for whole epochs, and which
    steps begin one."""
    weights = np.where(np.isfinite(steps["step_s"]), whole_epochs(steps), 0.0)
    keep = weights > 0
    return (
        (steps[column] * weights)[keep],
        (steps["step_s"] * weights)[keep],
        epoch_starts(steps)[keep],
    )


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


@dataclass(frozen=True)
class Bound:
    """A bound that runs must keep."""

    kind: Kind
    limit: float
    """A share, 0..1; min_samples_per_s: samples/s. max_slowdown: how far the throughput may be
    below the baseline's."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} {self.limit_words}"

    @property
    def limit_words(self) -> str:
        if self.kind == "min_samples_per_s":
            return f"at least {self.limit:,.10g} samples/s"
        return f"at most {self.limit * 100:.10g}%" + (
            " slower" if self.kind == "max_slowdown" else ""
        )


@dataclass(frozen=True)
class Judged:
    """The outcome of a bound, with the figure behind it."""

    bound: Bound
    outcome: Outcome
    """met or missed: the whole 95% interval is on that side of the limit. undecided: it is on both
    sides, or not known. refused: the runs cannot be judged."""
    figure: Figure | None
    reason: str = ""
    """If refused, why; if undecided, what would decide it; else empty."""

    @property
    def sentence(self) -> str:
        if self.figure is None:
            return f"{self.bound.title}: {self.reason}"
        f = self.figure
        kind = self.bound.kind
        ends = [
            number(v) if kind == "min_samples_per_s" else _amount(kind, v) for v in (f.low, f.high)
        ]
        interval = " to ".join(ends) if f.known else "not known"
        noise = "" if f.between_runs else ", run-to-run noise not in it"
        starts = f" and {count(f.n_starts, 'epoch start')}" if f.n_starts else ""
        rests_on = f"n = {f.n_steps:,} steps{starts} of {count(f.n_runs, 'run')}{noise}"
        words = f"{TITLES[kind]} {_amount(kind, f.value)} (95%: {interval}), {self.bound.limit_words}; {rests_on}"
        return words + (f"; {self.reason}" if self.reason else "")


def judge_bound(bound: Bound, runs: Sequence[Series], baseline: Sequence[Series] = ()) -> Judged:
    """Returns whether `runs`, at least one, keep the bound (max_slowdown: against `baseline`), by
    `FIGURE_STEPS`."""
    baseline = baseline if bound.kind == "max_slowdown" else ()
    if baseline:
        figure = slowdown(runs, baseline)
    elif bound.kind == "min_samples_per_s":
        figure = throughput(runs)
    else:
        figure = share(runs, COLUMNS[bound.kind])
    if not figure.known:
        return Judged(bound, "undecided", figure, _what_is_missing(figure))
    outcome = _outcome(bound, figure.low, figure.high)
    if outcome == "undecided":
        return Judged(bound, outcome, figure, _what_would_decide(bound, figure, runs, baseline))
    return Judged(bound, outcome, figure)


def _what_is_missing(figure: Figure) -> str:
    if figure.steps_missing:
        return f"{figure.steps_missing} more steady steps are needed"
    if math.isfinite(figure.value):
        return f"more steps are needed: {TOO_ALIKE}"
    return "the times of its steps are not known"


def _outcome(bound: Bound, low: float, high: float) -> Outcome:
    rounding = faster.ROUNDING_FRAC * bound.limit  # on a simulated device steps are all alike
    least = bound.kind == "min_samples_per_s"
    if low >= bound.limit - rounding if least else high <= bound.limit + rounding:
        return "met"
    return "missed" if (high < bound.limit if least else low > bound.limit) else "undecided"


def _what_would_decide(
    bound: Bound, figure: Figure, runs: Sequence[Series], baseline: Sequence[Series]
) -> str:
    too_close = "too close to the bound to be decided by measuring more; set the bound farther away"
    distance = abs(figure.value - bound.limit)
    reach = figure.value - figure.low if figure.value > bound.limit else figure.high - figure.value
    if len(runs) == 1 and not baseline:
        without = _without_one_step(bound, runs[0])
        is_beyond = (without > bound.limit) != (figure.value > bound.limit)
        if is_beyond and abs(without - figure.value) > reach / 2:
            amount = _amount(bound.kind, without)
            return f"a single step decides it: without that it is {amount}; repeat the run"
    if not figure.between_runs:
        factor = (reach / distance) ** 2 if distance > 0 else math.inf
        more = figure.n_steps / (1 + len(baseline)) * (factor - 1)
        if more > MOST_MORE_STEPS:
            return too_close
        each = " in each run" if baseline else ""
        return f"about {max(1, math.ceil(more)):,} more steps{each} would decide it"
    column = COLUMNS.get(bound.kind)
    if bound.kind == "max_slowdown":
        distance = abs(math.log((1 - figure.value) / (1 - bound.limit)))
    elif column is None:
        distance = abs(math.log(figure.value / bound.limit))
    return (
        _more_runs(run_spread(runs, column, baseline), distance, len(runs), len(baseline))
        or too_close
    )


def _without_one_step(bound: Bound, steps: Series) -> float:
    """Returns the figure of a run without the step that changes it most, epoch starts excepted: a few more
    steps do not outweigh a wait of 6 s."""
    part, whole, starts = _counted(steps, COLUMNS.get(bound.kind, "samples"))
    off = np.where(starts, 0.0, np.abs(part - part.sum() / whole.sum() * whole))
    rest = np.arange(len(off)) != off.argmax()
    return ratio_of_sums(part[rest], whole[rest])


def _more_runs(deviation: float, distance: float, n: int, m: int) -> str:
    """Returns how many more runs bring half of the interval below `distance`; "" if that would be
    too many.

    There are `n` runs, and `m` of the baseline (0: there is none). The next run is always of the
    side with fewer runs.
    """
    new_n = n
    new_m = m
    for _ in range(MOST_MORE_RUNS):
        if not m or new_n <= new_m:
            new_n += 1
        else:
            new_m += 1
        if half_interval(deviation, new_n, new_m) <= distance:
            base = f"{count(new_m - m, 'more run')} of the baseline" if new_m > m else ""
            candidate = count(new_n - n, "more run") if new_n > n else ""
            return f"about {' and '.join(filter(None, (candidate, base)))} would decide it"
    return ""


def _amount(kind: Kind, value: float) -> str:
    if kind == "min_samples_per_s":
        return number(value, "samples/s")
    words = f"{abs(value) * 100:.1f}%" if math.isfinite(value) else "n/a"
    return (
        words + (" faster" if value < 0 else " slower")
        if kind == "max_slowdown" and math.isfinite(value)
        else words
    )
