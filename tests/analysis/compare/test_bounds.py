"""Bounds: how often they err on runs whose truth is known, how often they decide, and what they say."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.analysis.compare.simulated_runs import IDLE, RATE, run
from vitprof.analysis.arrays import Series
from vitprof.analysis.compare import bounds
from vitprof.analysis.compare.bounds import Bound, Judged, half_interval, judge_bound

N = 100
Rng = np.random.Generator
Side = Callable[[Rng], Sequence[Series]]


def some(n_runs: int, **settings: float) -> Side:
    return lambda rng: [run(rng, **settings) for _ in range(n_runs)]  # type: ignore[arg-type]


def outcomes(bound: Bound, runs: Side, baseline: Side | None = None) -> dict[str, float]:
    """Shares of `N` checks."""
    told = []
    for seed in range(N):
        rng = np.random.default_rng(seed)
        told.append(judge_bound(bound, runs(rng), baseline(rng) if baseline else ()).outcome)
    return {outcome: told.count(outcome) / N for outcome in ("met", "missed", "undecided")}


@pytest.mark.parametrize(
    ("bound", "runs", "baseline"),
    [
        (Bound("min_samples_per_s", RATE), some(1, n=20), None),
        (Bound("min_samples_per_s", RATE), some(1, alike=0.6), None),
        (Bound("max_idle", IDLE), some(3, n=40, between=0.02), None),
        (Bound("max_slowdown", 0.05), some(1, n=60, speed=0.95), some(1, n=60)),
        (
            Bound("max_slowdown", 0.05),
            some(1, n=60, speed=0.95, between=0.02),
            some(3, n=60, between=0.02),
        ),
    ],
    ids=["few steps", "steps alike", "several runs", "1 against 1", "1 against 3"],
)
def test_on_the_bound_itself_few_are_called_missed_or_met(
    bound: Bound, runs: Side, baseline: Side | None
) -> None:
    """Nowhere else are there as many false alarms: 2.5% on each side is what the intervals promise."""
    found = outcomes(bound, runs, baseline)
    assert max(found["missed"], found["met"]) <= 0.05


@pytest.mark.parametrize(
    ("bound", "outcome"),
    [
        (Bound("max_idle", 0.3), "missed"),  # 20%, and 47% with epoch starts
        (Bound("max_data_wait", 0.2), "missed"),
        (Bound("max_data_wait", 0.6), "met"),
        (Bound("min_samples_per_s", 0.9 * RATE), "missed"),
        (Bound("min_samples_per_s", 0.55 * RATE), "met"),
        (Bound("max_slowdown", 0.1), "missed"),
    ],
)
@pytest.mark.parametrize("last", [200, 175])
def test_bounds_are_held_by_whole_epochs(bound: Bound, outcome: str, last: int) -> None:
    """Wherever the run ends: 40 steps of 10 ms, and half of that on top as each begins."""
    runs = [run(np.random.default_rng(0), n=200, within=0.01)]
    baseline = [{name: values.copy() for name, values in runs[0].items()}]
    runs[0]["epoch"] = runs[0]["step"] // 40
    for name in ("step_s", "gap_s", "data_wait_s"):
        runs[0][name] = runs[0][name] + np.where(runs[0]["step"] % 40 == 0, 20 * 0.01, 0.0)
    judged = judge_bound(
        bound, [{name: values[:last] for name, values in runs[0].items()}], baseline
    )
    assert judged.outcome == outcome
    assert "and 4 epoch starts of" in judged.sentence
    if bound.kind == "min_samples_per_s" and judged.figure is not None:
        assert judged.figure.value == pytest.approx(RATE / 1.5, rel=0.02)


def test_a_true_difference_is_found_and_none_is_not() -> None:
    """Three runs on each side, which differ by 1% from each other beside the noise of their 60 steps."""
    bound, baseline = Bound("max_slowdown", 0.05), some(3, n=60, between=0.01)
    same, slower = (
        outcomes(bound, some(3, n=60, between=0.01, speed=speed), baseline) for speed in (1.0, 0.85)
    )
    assert (same["missed"], slower["met"]) == (0, 0)
    assert same["met"] >= 0.6
    assert slower["missed"] >= 0.95


def steady(rate: float, n: int = 100, jitter: float = 0.0) -> Series:
    """A run at `rate` samples/s whose halves differ by `jitter`."""
    made = dict(run(np.random.default_rng(0), n, within=0.0))
    made["step_s"] = 32 / rate * np.where(np.arange(n + 5) % 2, 1 + jitter, 1 - jitter)
    return made


def judged(kind: str, limit: float, *runs: Series, baseline: Sequence[Series] = ()) -> Judged:
    return judge_bound(Bound(kind, limit), runs, baseline)  # type: ignore[arg-type]


def test_what_a_line_says() -> None:
    told = judged("min_samples_per_s", 900, steady(1000))
    assert told.outcome == "met"
    assert told.sentence.startswith(
        "throughput 1,000 samples/s (95%: 1,000 to 1,000), at least 900 samples/s; n = 100 "
    )
    assert told.sentence.endswith(" steps of 1 run, run-to-run noise not in it")
    told = judged("max_slowdown", 0.05, steady(900), steady(900), baseline=[steady(1000)])
    assert told.outcome == "missed"
    assert told.sentence.startswith(
        "against the baseline 10.0% slower (95%: 10.0% slower to 10.0% slower), at most 5% "
    )
    assert told.sentence.endswith("; n = 300 steps of 3 runs")
    told = judged("max_slowdown", 0.05, steady(1020), baseline=[steady(1000)])
    assert told.outcome == "met"
    assert told.sentence.startswith(
        "against the baseline 2.0% faster (95%: 2.0% faster to 2.0% faster)"
    )


def test_too_few_steps_are_neither_a_pass_nor_a_regression_and_those_that_are_asked_for_decide() -> (
    None
):
    for limit in (1.0, 1e6):
        told = judged("min_samples_per_s", limit, steady(1000, 12))
        assert told.outcome == "undecided"
        assert told.sentence.endswith("8 more steady steps are needed")
    told = judged("max_slowdown", 0.05, steady(10), baseline=[steady(1000), steady(1000, 15)])
    assert (told.outcome, told.reason) == ("undecided", "5 more steady steps are needed")
    # four times the steps halve the interval; the figure may move meanwhile, so it is asked of one that does not
    n, undecided = 60, judged("min_samples_per_s", RATE * 0.99, run(np.random.default_rng(1), 60))
    assert undecided.outcome == "undecided"
    more = int(undecided.reason.removeprefix("about ").split()[0].replace(",", ""))
    reach = (undecided.figure.value - undecided.figure.low) / math.sqrt((n + more) / n)
    assert reach == pytest.approx(abs(undecided.figure.value - RATE * 0.99), rel=0.02)


def test_the_interval_of_several_runs_is_students() -> None:
    mine, base = np.array([0.3, 0.5, 0.45, 0.38]), np.array([0.7, 0.62])
    of_one = stats.ttest_1samp(mine, 0).confidence_interval(0.95)
    found = half_interval(bounds.spread(mine), len(mine))
    assert found == pytest.approx((of_one.high - of_one.low) / 2)
    of_two = stats.ttest_ind(mine, base).confidence_interval(0.95)
    found = half_interval(bounds.spread(mine, base), len(mine), len(base))
    assert found == pytest.approx((of_two.high - of_two.low) / 2)


SAID = re.compile(
    r"about (?:(\d+) more runs?)?(?: and )?(?:(\d+) more runs? of the baseline)? would decide it"
)


@pytest.mark.parametrize(
    ("mine", "base"),
    [
        ([0.98], [1.0, 1.01]),
        ([0.97], [1.0, 1.02, 0.98, 1.0, 1.01]),
        ([0.93, 0.94, 0.92], [1.0, 1.03]),
        ([0.8, 1.2], []),
    ],
)
def test_the_runs_that_are_asked_for_would_decide(mine: list[float], base: list[float]) -> None:
    """They bring the interval to one side of the bound, and one run less on a side does not."""
    runs, baseline = [steady(rate) for rate in mine], [steady(rate) for rate in base]
    told = judged(
        "max_slowdown" if base else "min_samples_per_s",
        0.05 if base else 0.8,
        *runs,
        baseline=baseline,
    )
    assert told.outcome == "undecided"
    asked = SAID.fullmatch(told.reason)
    assert asked is not None, told.reason
    n, m = (
        len(side) + int(more or 0) for side, more in zip((mine, base), asked.groups(), strict=True)
    )
    mean = float(np.log(mine).mean() - np.log(base).mean()) if base else float(np.log(mine).mean())
    distance = abs(mean - math.log(0.95 if base else 0.8))
    deviation = bounds.run_spread(runs, None, baseline)
    fewer = (n - 1, m) if n > m or m == len(base) else (n, m - 1)
    assert half_interval(deviation, n, m) <= distance < half_interval(deviation, *fewer)


def test_steps_that_come_in_long_runs_need_more_of_them() -> None:
    uneven = dict(steady(1000))
    halves = np.where(np.arange(105) < 55, 0.5, 1.5)
    uneven["gap_s"] = uneven["step_s"] * IDLE * halves
    told = judged("max_idle", 0.5, uneven)
    assert told.outcome == "undecided"
    assert "more steps are needed: slow and fast ones come in runs too long" in told.reason
    assert "95%: not known" in told.sentence


def test_a_figure_on_its_bound_is_not_to_be_decided() -> None:
    even = dict(steady(1000))
    even["gap_s"] = even["step_s"] * IDLE
    assert judged("max_idle", IDLE, even).outcome == "met", "all of the interval is at most that"
    uneven = even | {"gap_s": even["gap_s"] * np.where(np.arange(105) % 2, 0.5, 1.5)}
    told = judged("max_idle", float(uneven["gap_s"][5:].sum() / uneven["step_s"][5:].sum()), uneven)
    assert told.outcome == "undecided"
    assert "too close to the bound" in told.reason


def test_unknown_times_are_undecided_and_shares_stay_shares() -> None:
    rng = np.random.default_rng(0)
    some_idle = [dict(run(rng, 30)) for _ in range(2)]
    some_idle[0]["gap_s"] = some_idle[0]["gap_s"] * 0
    told = judged("max_idle", 0.5, *some_idle).figure
    assert (told.low, told.high) == (0.0, 1.0), "two runs say next to nothing"
    unknown = dict(steady(1000))
    unknown["gap_s"] = np.full(105, math.nan)
    told = judged("max_idle", 0.1, unknown)
    assert told.outcome == "undecided"
    assert "device idle n/a (95%: not known)" in told.sentence
    assert replace(told, figure=None, reason="why").sentence == "device idle at most 10%: why"


def test_where_a_single_step_decides_no_few_more_steps_do() -> None:
    """One wait of 6 s among 115 of 12 ms: "about 23 more steps would decide it" was said."""
    long = dict(steady(1000))
    long["step_s"] = np.where(np.arange(105) == 40, 60 * long["step_s"], long["step_s"])
    long["gap_s"] = np.where(np.arange(105) == 40, 0.95, 0.02) * long["step_s"]
    told = judged("max_idle", 0.1, long)
    assert told.outcome == "undecided"
    assert told.reason == "a single step decides it: without that it is 2.0%; repeat the run"
