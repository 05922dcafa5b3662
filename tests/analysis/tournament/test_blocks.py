"""Blocks of a run: what they contain, and which of them other programs disturbed, by what telemetry
saw of those."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.analysis.tournament.tournament_entries import entry, ranked, with_runs
from vitprof.analysis.tournament import blocks
from vitprof.analysis.tournament.blocks import over_epochs, period, run_blocks, spoiled
from vitprof.analysis.tournament.entries import over_whole_epochs
from vitprof.analysis.tournament.leaderboard import spoiled_words


def rates_of(series: dict[str, np.ndarray]) -> np.ndarray:
    return run_blocks(series).per_s


def steps(
    seconds: np.ndarray, samples: np.ndarray, depth: np.ndarray | None = None, waits: float = 0.5
) -> dict[str, np.ndarray]:
    """`depth`: of the loader's queue; a step that finds it empty waits for that share of its
    time.
    """
    n = len(seconds)
    known = {
        "step_s": seconds,
        "samples": samples,
        "epoch": np.zeros(n),
        "warmup": (np.arange(n) < 2).astype(float),
    }
    if depth is None:
        return known | {"queue_depth": np.full(n, np.nan), "data_wait_s": np.zeros(n)}
    return known | {"queue_depth": depth, "data_wait_s": np.where(depth > 0, 0.0, waits * seconds)}


def test_blocks_make_up_all_steady_steps_also_few_and_of_a_queue_that_stays_full() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.5, 1.5, 207)
    rates = rates_of(steps(seconds, np.full(207, 8.0)))
    assert len(rates) == 40
    assert rates[0] == pytest.approx(5.125 * 8 / (seconds[2:7].sum() + seconds[7] / 8))
    assert 1 / (1 / rates).mean() == pytest.approx(8 * 205 / seconds[2:].sum())
    seconds, samples = np.full(29, 0.1), np.full(29, 8.0)
    seconds[[6, 13, 28]], samples[[10, 28]] = 2.0, 3.0  # stalls, and the last batch of an epoch
    rates = rates_of(steps(seconds, samples))
    assert len(rates) == 20
    assert 1 / (1 / rates).mean() == pytest.approx(samples[2:].sum() / seconds[2:].sum())
    seconds = np.array([9.0, 9.0, 0.5, np.nan, 0.0, 0.25])
    assert rates_of(steps(seconds, np.ones(6))).tolist() == [2.0, 4.0]
    assert rates_of(steps(np.empty(0), np.empty(0))).tolist() == []
    assert rates_of(steps(np.ones(2), np.ones(2))).tolist() == []
    depths = np.minimum(np.arange(402), 8.0)
    assert len(rates_of(steps(np.ones(402), np.full(402, 8.0), depths))) == 40


def test_figures_are_of_whole_epochs_where_every_run_began_a_second_one() -> None:
    """A start of 2 s before each ten steps of 0.1 s, the last epoch cut short; without it nothing
    is compared with."""
    seconds = np.where(np.arange(36) % 10, 0.1, 2.0)
    series = steps(seconds, np.full(36, 8.0)) | {"epoch": np.arange(36) // 10}
    factor = over_epochs(series)
    assert factor == pytest.approx((80 / 2.9) / 80)
    assert math.isnan(over_epochs(steps(np.ones(9), np.ones(9))))
    slow, fast = entry("slow", 80.0), entry("fast", 100.0)
    slow = with_runs(slow, over_epochs=[factor] * 3)
    assert slow in over_whole_epochs((slow, with_runs(fast, over_epochs=[math.nan] * 3)))
    whole = over_whole_epochs((slow, fast))
    assert ranked(*whole).row(slow.key).samples_per_s == pytest.approx(80 / 2.9, rel=0.02)


@pytest.mark.parametrize("every", [8, 25, 40, 64, 90])
def test_a_loader_that_stalls_again_and_again_gains_nothing_by_it(every: int) -> None:
    """A block holds a whole period, so that none is free of stalls; all of them together are all of
    the time."""
    rng = np.random.default_rng(every)
    for phase in range(0, every, 3):
        seconds = rng.lognormal(0, 0.1, 402) * np.where(
            (np.arange(402) + phase) % every == 0, 20, 1
        )
        rates = rates_of(steps(seconds, np.full(402, 8.0)))
        assert len(rates) >= 4
        truly = 8 * 400 / seconds[2:].sum()
        one_stall_in_almost_two_periods = 8 * (2 * every - 1) / (20 + 2 * every - 2)
        assert rates.max() <= 1.05 * one_stall_in_almost_two_periods
        assert 1 / (1 / rates).mean() == pytest.approx(truly)


def test_no_period_is_seen_in_chance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert period(rng.lognormal(0, 0.3, 400)) == 1
        assert period(rng.lognormal(0, 0.1, 400) * np.where(rng.random(400) < 0.1, 5, 1)) == 1
    assert (period(np.ones(400)), period(np.linspace(1, 2, 400)), period(np.ones(3))) == (1, 1, 1)


MADE_S, USED_S, MOST = 1.0, 0.2, 4
"""A batch a second from workers that keep at most four ready; the loop takes a fifth of that."""


def fed_by_workers(seed: int, n: int) -> tuple[Any, Any]:
    """Seconds and queue depths of `n` steps of a loop that other programs hold up for 3 to 6 s, one
    time in ten."""
    rng = np.random.default_rng(seed)
    held = np.where(rng.random(n) < 0.1, rng.uniform(3, 6, n), 0.0)
    asked, made = np.zeros(n + 1), np.zeros(n + MOST)
    for k in range(
        n + MOST
    ):  # a worker begins the batch behind the last, once there is room for it
        made[k] = max(made[k - 1] if k else 0.0, asked[k - MOST] if k >= MOST else 0.0) + MADE_S
        if k >= MOST - 1 and k - MOST + 1 < n:
            i = k - MOST + 1
            asked[i + 1] = max(asked[i], made[i]) + USED_S + held[i]
    depths = np.array([np.sum(made[i : i + MOST] <= asked[i]) for i in range(n)], dtype=float)
    return np.diff(asked), depths


def test_batches_made_while_the_loop_was_held_up_are_no_throughput() -> None:
    """The workers make a batch a second, whatever the loop does; a block of two steps may be of
    batches from before."""
    for n, most, before in ((40, 1.5, 4.0), (200, 1.25, 1.15)):
        with_queue, without = [], []
        for seed in range(20):
            seconds, depths = fed_by_workers(seed, n)
            rates = rates_of(steps(seconds, np.ones(n), depths))
            assert len(rates) >= 4
            with_queue.append(np.quantile(rates, 0.8))
            without.append(np.quantile(rates_of(steps(seconds, np.ones(n))), 0.8))
        assert max(with_queue) <= most / MADE_S
        assert max(without) > before / MADE_S


@pytest.mark.parametrize(("waits", "n"), [(0.03, 40), (0.5, 12)])
def test_a_queue_that_comes_and_goes_matters_only_to_a_loop_that_waits(
    waits: float, n: int
) -> None:
    depths = np.random.default_rng(0).integers(0, 9, 402).astype(float)
    assert len(rates_of(steps(np.ones(402), np.full(402, 8.0), depths, 9 * waits))) == n


CORES = 4


def telemetry(
    n: int, others: np.ndarray | float, waited_pct: float = math.nan, pressure_pct: float = math.nan
) -> dict[str, np.ndarray]:
    """Samples five times a second: the job takes one core, others take `others` cores on top."""
    taken = np.broadcast_to(np.asarray(others, dtype=float), (n,))
    return {
        "t_s": np.arange(n) / 5,
        "cpu_pct": 100 * (1 + taken) / CORES,
        "job_cpu_pct": np.full(n, 100.0),
        "job_cpu_wait_pct": np.full(n, waited_pct),
        "cpu_pressure_pct": np.full(n, pressure_pct),
    }


def timed(n: int, step_s: float) -> dict[str, np.ndarray]:
    return steps(np.full(n, step_s), np.full(n, 8.0)) | {"t_start_s": np.arange(n) * step_s}


def disturbed(seen: dict[str, np.ndarray], run: dict[str, np.ndarray] | None = None) -> list[int]:
    """Which blocks of a run of 20 s are disturbed."""
    made = run_blocks(timed(400, 0.05) if run is None else run)
    return np.flatnonzero(blocks.disturbance(made, seen, {"cpu_count": CORES}).disturbed).tolist()


def test_a_fit_of_half_a_second_costs_its_own_blocks_and_not_the_round() -> None:
    others = np.zeros(120)
    others[51:54] = 1.0  # from 10.0 to 10.6 s
    made = run_blocks(timed(400, 0.05))
    assert len(made.per_s) == 39
    assert made.begin_s[0] == pytest.approx(0.1), "after two steps of warm-up"
    assert made.end_s[-1] == pytest.approx(20)
    out = disturbed(telemetry(120, others))
    assert len(out) == 2
    assert made.begin_s[out[0]] < 10.0 < made.end_s[out[0]]
    assert made.begin_s[out[1]] < 10.6 < made.end_s[out[1]] + 0.2


def test_others_disturb_only_where_somebody_waited_for_a_core() -> None:
    every = list(range(39))
    assert disturbed(telemetry(120, 1.0)) == every, "nobody counted who waited"
    assert disturbed(telemetry(120, 1.0, waited_pct=0.0)) == []
    assert disturbed(telemetry(120, 1.0, waited_pct=20.0)) == every
    assert disturbed(telemetry(120, 1.0, pressure_pct=0.5)) == []
    assert disturbed(telemetry(120, 1.0, pressure_pct=30.0)) == every
    assert disturbed(telemetry(120, 0.2, pressure_pct=30.0)) == [], "the job's own threads waited"


def test_what_telemetry_does_not_know_counts() -> None:
    """No telemetry, one sample, a hole in it, no count of cores, steps without a clock: nobody was
    seen."""
    seen = telemetry(120, 1.0)
    for few in (0, 1):
        assert disturbed({name: values[:few] for name, values in seen.items()}) == []
    unknown = seen | {"cpu_pct": np.full(120, math.nan)}
    assert disturbed(unknown) == []
    made = run_blocks(timed(400, 0.05))
    found = blocks.disturbance(made, unknown, {"cpu_count": CORES})
    assert np.isnan(found.others_cores).all()
    assert not blocks.disturbance(made, seen, {}).disturbed.any()
    hole = seen["cpu_pct"].copy()
    hole[50:76] = math.nan  # from 9.8 to 15 s
    out = disturbed(seen | {"cpu_pct": hole})
    assert {int(2 * at) for at in made.begin_s[out]}.isdisjoint(range(22, 28))
    assert 20 <= len(out) < 39
    no_clock = timed(400, 0.05)
    del no_clock["t_start_s"]
    assert disturbed(seen, no_clock) == []
    old = {name: seen[name] for name in ("t_s", "cpu_pct", "job_cpu_pct")}
    assert len(disturbed(old)) == 39, "a run of a version that did not count who waited"


def test_a_block_that_is_slow_by_itself_counts() -> None:
    seconds = np.full(400, 0.05)
    seconds[200:240] = 0.5
    made = steps(seconds, np.full(400, 8.0)) | {"t_start_s": np.cumsum(seconds) - seconds}
    assert disturbed(telemetry(300, 0.1), made) == []


def of_blocks(*out: int) -> np.ndarray:
    return np.isin(np.arange(20), out)


def test_a_round_counts_with_its_undisturbed_blocks_and_not_without_four() -> None:
    slow = np.where(of_blocks(3, 4), 250.0, 1000.0)
    made = entry("a", 1000)
    runs = with_runs(
        made,
        blocks_per_s=[np.full(20, 1000.0), slow, np.full(20, 400.0)],
        disturbed=[of_blocks(), of_blocks(3, 4), of_blocks(*range(17))],
        others_cores=[0.0, 0.2, 1.5],
    )
    assert spoiled(runs) == {3: 1.5}
    assert {n: len(b.seconds) for n, b in blocks.rounds_of(runs).items()} == {1: 20, 2: 18}
    (row,) = ranked(runs).rows
    assert (row.n_runs, row.spoiled) == (2, {3: 1.5})
    assert row.samples_per_s == pytest.approx(1000)
    assert spoiled_words(row) == "round 3 not counted: other programs used 1.5 CPU cores"
    many = dataclasses.replace(row, spoiled=dict.fromkeys((1, 3, 4), 1.6))
    assert spoiled_words(many) == "rounds 1, 3 and 4 not counted: other programs used 1.6 CPU cores"
    assert spoiled_words(dataclasses.replace(row, spoiled={})) == ""


def test_what_a_run_adds_to_the_figure_is_the_time_that_nobody_disturbed() -> None:
    rates = np.where(of_blocks(0, 1, 2, 3), 500.0, 1000.0)
    two = dataclasses.replace(entry("a", 1000), outcomes=entry("a", 1000).outcomes[:2])
    made = with_runs(two, blocks_per_s=[rates] * 2, disturbed=[of_blocks(0, 1, 2, 3)] * 2)
    for outcome in made.outcomes:
        counted = blocks.counted_speed(outcome)
        assert counted.per_s == pytest.approx(1000)
        assert counted.left_out_frac == pytest.approx(8 / 24)
    (row,) = ranked(made).rows
    assert row.samples_per_s == pytest.approx(1000), "the figure of the setting follows from these"
    spoiled_run = dataclasses.replace(made.outcomes[0], disturbed=of_blocks(*range(17)))
    counted = blocks.counted_speed(spoiled_run)
    assert (math.isnan(counted.per_s), counted.left_out_frac) == (True, 1.0)
    failed = dataclasses.replace(made.outcomes[0], status="failed")
    assert math.isnan(blocks.counted_speed(failed).left_out_frac)


def test_a_slow_round_that_nobody_disturbed_counts_in_full() -> None:
    made = with_runs(
        entry("a", 1000),
        blocks_per_s=[np.full(20, 1000.0), np.full(20, 500.0)],
        others_cores=[0.1, 1.5],
    )
    (row,) = ranked(made).rows
    assert (row.spoiled, row.n_runs) == ({}, 2)
    assert row.samples_per_s == pytest.approx(2 / (1 / 1000 + 1 / 500))


def test_a_run_too_short_for_four_blocks_is_not_spoiled_by_that() -> None:
    made = with_runs(
        entry("a", 1000), blocks_per_s=[np.full(3, 1000.0)], disturbed=[np.zeros(3, dtype=bool)]
    )
    assert spoiled(made) == {}
    assert list(spoiled(with_runs(made, disturbed=[np.array([True, False, False])]))) == [1]
