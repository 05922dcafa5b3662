"""Bounds on runs: which are met, which are missed, and how many more runs or steps would decide the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis.arrays import Series
from vitprof.analysis.check import figures
from vitprof.analysis.check.figures import Figure, one_sample_half, two_sample_half
from vitprof.analysis.thresholds import EPOCH_STARTS_FRAC
from vitprof.analysis.verdict.headroom import ROUNDING_FRAC
from vitprof.formats import number

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
        said = f"{TITLES[self.bound.kind]} {_measured(self.bound.kind, self.figure)}, {self.bound.limit_words}"
        return f"{said}; {_rests_on(self.figure)}" + (f"; {self.reason}" if self.reason else "")


def judge_bound(bound: Bound, runs: Sequence[Series], baseline: Sequence[Series] = ()) -> Judged:
    """Returns whether `runs` keep the bound.

    Each run is the (n,) columns `FIGURE_STEPS` of its steps. Needs at least one run, and for max_slowdown one in
    `baseline`.
    """
    baseline = baseline if bound.kind == "max_slowdown" else ()
    if baseline:
        figure = figures.slowdown(runs, baseline)
    elif bound.kind == "min_samples_per_s":
        figure = figures.throughput(runs)
    else:
        figure = figures.share(runs, COLUMNS[bound.kind])
    if not figure.known:
        missing = figure.steps_missing
        wants = f"{missing} more steady steps are needed" if missing else "the times of its steps are not known"
        return Judged(bound, "undecided", figure, wants)
    outcome = _outcome(bound, figure.low, figure.high)
    if outcome == "undecided":
        return Judged(bound, outcome, figure, _what_would_decide(bound, figure, runs, baseline))
    whole = figures.wall_clock_value(runs, COLUMNS.get(bound.kind), baseline)
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
        deviation = figures.log_spread(runs, baseline)
        distance = abs(math.log((1 - figure.value) / (1 - bound.limit)))
    elif bound.kind == "min_samples_per_s":
        deviation, distance = figures.run_spread(runs, None), abs(math.log(figure.value / bound.limit))
    else:
        deviation = figures.run_spread(runs, COLUMNS[bound.kind])
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
