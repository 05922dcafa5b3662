"""Scores: intervals over few rounds hold the truth, machines that are busy in fits mislead nobody."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.analysis.tournament.tournament_entries import entry, ranked, with_runs
from vitprof.analysis.arrays import Interval
from vitprof.analysis.tournament import scores
from vitprof.analysis.tournament.entries import over_whole_epochs
from vitprof.analysis.tournament.leaderboard import spoiled_words
from vitprof.analysis.tournament.scores import (
    EARLIEST_STOP_FRAC,
    block_rates,
    cannot_win,
    period,
    spoiled,
    without_others,
)


@pytest.mark.parametrize("rounds", [2, 5])
def test_the_interval_holds_the_truth(rounds: int) -> None:
    """Runs differ by 1% beyond what their blocks show; of 120 intervals of 95%, chance makes 107 or fewer in 1%."""
    held = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        mine, base = (
            scores.score(
                scores.rounds_of(entry(key, 1000, seed=seed, runs=rounds, moments=moments)), key
            )
            for key, moments in zip("ab", rng.normal(0, 0.01, (2, rounds)), strict=True)
        )
        gain = scores.ratio(mine, base, scores.sure_level(rounds))
        held += gain.low <= 1 <= gain.high
    assert held > 107


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Interval(1.0, 0.96, 1.04), "equal"),
        (Interval(1.02, 1.01, 1.03), "equal"),
        (Interval(1.04, 1.01, 1.07), "faster"),
        (Interval(0.5, 0.4, 0.6), "slower"),
        (Interval(1.0, 0.94, 1.01), "undecided"),
        (Interval(2.0, math.nan, math.nan), "undecided"),
    ],
)
def test_equal_is_what_is_known_to_differ_little(gain: Interval, said: str) -> None:
    assert scores.comparison(gain) == said


def test_throughput_is_all_samples_over_all_time_and_a_round_that_others_slowed_down_counts_little() -> (
    None
):
    quiet = scores.rounds_of(entry("a", 1000))
    spoiled = {**quiet, 2: quiet[2] * 0.5}
    assert scores.score(spoiled, "a").value == pytest.approx(
        scores.score(quiet, "a").value, abs=0.02
    )
    alike = dict.fromkeys(quiet, 1.0)
    assert (
        scores.throughput(spoiled, alike, "a").value
        < 0.8 * scores.throughput(quiet, alike, "a").value
    )
    # a run of 900 samples at 300/s and one of 100 samples at 50/s: 1,000 samples in 5 s; the second has few blocks
    runs = {1: np.array([200.0, 600.0] * 10), 2: np.full(7, 50.0)}
    found = scores.throughput(runs, {1: 900.0, 2: 100.0}, "a")
    assert found.value == pytest.approx(200)
    assert found.low < 200 < found.high
    uneven = {
        1: np.full(20, 300.0),
        2: np.array([25.0, 50.0, 100.0] * 3),
    }  # 7/3 times 1/50 s for a sample
    assert scores.throughput(uneven, {1: 900.0, 2: 100.0}, "a").value == pytest.approx(
        1000 / (3 + 7 / 3)
    )


@pytest.mark.parametrize(
    ("slower", "others", "out"),
    [
        ((1, 0.5, 1), (0.1, 1.5, 0.1), {2: 1.5}),
        ((1, 0.5, 1), (0.1, 0.1, 0.1), {}),  # slow for a reason of its own
        ((1, 0.95, 1), (0.1, 1.5, 0.1), {}),  # busy, but hardly slower
        ((1, 0.5, 1), (1.5, 1.5, 1.5), {}),  # busy all the time: so it is here
        ((1, 0.5, 1), (math.nan, 1.5, math.nan), {}),
        ((0.5, 0.4, 0.6), (0.9, 1.5, 0.1), {1: 0.9, 2: 1.5}),
    ],
)
def test_a_slow_round_beside_others(
    slower: tuple[float, ...], others: tuple[float, ...], out: dict[int, float]
) -> None:
    made = with_runs(entry("a", 1000, moments=np.log(slower)), others_cores=others)
    assert spoiled(made) == out
    assert set(scores.rounds_of(made)) == {1, 2, 3} - set(out)
    (row,) = ranked(made).rows
    assert (row.n_runs, row.spoiled) == (3 - len(out), out)
    rounds = {0: "", 1: "round 2", 2: "rounds 1 and 2"}[len(out)]
    assert spoiled_words(row) == (
        rounds and f"{rounds} not counted: other programs used 1.5 CPU cores"
    )
    many = dataclasses.replace(row, spoiled=dict.fromkeys((1, 3, 4), 1.6))
    assert spoiled_words(many) == "rounds 1, 3 and 4 not counted: other programs used 1.6 CPU cores"


def test_levels() -> None:
    assert scores.sure_level(1) == scores.sure_level(3) == pytest.approx(0.975)
    assert math.fsum(1 - scores.sure_level(n) for n in range(3, 1000)) < 0.05


def test_what_ran_once_holds_up_the_answer_while_it_can_be_the_fastest() -> None:
    known = {
        name: scores.score(scores.rounds_of(entry(name, speed)), name)
        for name, speed in (("a", 1000), ("b", 700))
    }
    assert scores.near_best(known) == {"a": 1, "b": 0}
    once = scores.Score(math.log(900), np.full(1000, math.nan))
    assert all(math.isnan(p) for p in scores.near_best(known | {"c": once}).values())
    found = scores.near_best(known | {"c": once}, out={"c"})
    assert (found["a"], math.isnan(found["c"])) == (1, True)
    slow = scores.Score(math.log(400), once.draws)
    assert scores.near_best(known | {"c": slow})["a"] == 1


def steps(
    seconds: np.ndarray, samples: np.ndarray, depth: np.ndarray | None = None, waits: float = 0.5
) -> dict[str, np.ndarray]:
    """`depth`: of the loader's queue; a step that finds it empty waits for that share of its time."""
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
    rates = block_rates(steps(seconds, np.full(207, 8.0)))
    assert (len(rates), rates[0]) == (
        20,
        pytest.approx(10.25 * 8 / (seconds[2:12].sum() + seconds[12] / 4)),
    )
    assert 1 / (1 / rates).mean() == pytest.approx(8 * 205 / seconds[2:].sum())
    seconds, samples = np.full(29, 0.1), np.full(29, 8.0)
    seconds[[6, 13, 28]], samples[[10, 28]] = 2.0, 3.0  # stalls, and the last batch of an epoch
    rates = block_rates(steps(seconds, samples))
    assert len(rates) == 20
    assert 1 / (1 / rates).mean() == pytest.approx(samples[2:].sum() / seconds[2:].sum())
    seconds = np.array([9.0, 9.0, 0.5, np.nan, 0.0, 0.25])
    assert block_rates(steps(seconds, np.ones(6))).tolist() == [2.0, 4.0]
    assert block_rates(steps(np.empty(0), np.empty(0))).tolist() == []
    assert block_rates(steps(np.ones(2), np.ones(2))).tolist() == []
    depths = np.minimum(np.arange(402), 8.0)
    assert len(block_rates(steps(np.ones(402), np.full(402, 8.0), depths))) == 20


def test_figures_are_of_whole_epochs_where_every_run_began_a_second_one() -> None:
    """A start of 2 s before each ten steps of 0.1 s, the last epoch cut short; without it nothing is compared with."""
    seconds = np.where(np.arange(36) % 10, 0.1, 2.0)
    series = steps(seconds, np.full(36, 8.0)) | {"epoch": np.arange(36) // 10}
    factor = scores.over_epochs(series)
    assert factor == pytest.approx((80 / 2.9) / 80)
    assert math.isnan(scores.over_epochs(steps(np.ones(9), np.ones(9))))
    slow, fast = entry("slow", 80.0), entry("fast", 100.0)
    slow = with_runs(slow, over_epochs=[factor] * 3)
    assert slow in over_whole_epochs((slow, with_runs(fast, over_epochs=[math.nan] * 3)))
    whole = over_whole_epochs((slow, fast))
    assert ranked(*whole).row(slow.key).samples_per_s == pytest.approx(80 / 2.9, rel=0.02)


@pytest.mark.parametrize("every", [8, 25, 40, 64, 90])
def test_a_loader_that_stalls_again_and_again_gains_nothing_by_it(every: int) -> None:
    """Blocks of a twentieth would leave a stall of every 40th batch out of half of them, and so out of the score."""
    rng = np.random.default_rng(every)
    for phase in range(0, every, 3):
        seconds = rng.lognormal(0, 0.1, 402) * np.where(
            (np.arange(402) + phase) % every == 0, 20, 1
        )
        rates = block_rates(steps(seconds, np.full(402, 8.0)))
        assert len(rates) >= 4
        truly = 8 * 400 / seconds[2:].sum()
        assert np.percentile(rates, 80) <= 1.2 * truly
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
    """Seconds and queue depths of `n` steps of a loop that other programs hold up for 3 to 6 s, one time in ten."""
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
    """The workers make a batch a second, whatever the loop does; a block of two steps may be of batches from before."""
    for n, most, before in ((40, 1.5, 4.0), (200, 1.25, 1.15)):
        with_queue, without = [], []
        for seed in range(20):
            seconds, depths = fed_by_workers(seed, n)
            rates = block_rates(steps(seconds, np.ones(n), depths))
            assert len(rates) >= 4
            with_queue.append(np.quantile(rates, 0.8))
            without.append(np.quantile(block_rates(steps(seconds, np.ones(n))), 0.8))
        assert max(with_queue) <= most / MADE_S
        assert max(without) > before / MADE_S


@pytest.mark.parametrize(("waits", "n"), [(0.03, 20), (0.5, 12)])
def test_a_queue_that_comes_and_goes_matters_only_to_a_loop_that_waits(
    waits: float, n: int
) -> None:
    depths = np.random.default_rng(0).integers(0, 9, 402).astype(float)
    assert len(block_rates(steps(np.ones(402), np.full(402, 8.0), depths, 9 * waits))) == n


def test_a_slower_trial_is_cut_and_neighbours_that_are_alike_are_not() -> None:
    cut = 0
    for seed in range(100):
        walk = np.repeat(np.random.default_rng(seed).normal(0, 0.1, 10), 4)  # fours that are alike
        cut += cannot_win(1000 * np.exp(walk), 1050.0)
    assert cut <= 5
    rates = 900 * np.exp(np.random.default_rng(1).normal(0, 0.02, 40))
    for best_low, out in ((1000.0, True), (890.0, False)):
        looks = [
            cannot_win(rates[:n], 1.05 * best_low) for n in range(20, 41, 5)
        ]  # after each few blocks
        assert any(looks) == out
    assert not cannot_win(rates[:19], 1000.0)
    assert cannot_win(np.full(20, 950.0), 1000.0)
    assert not cannot_win(np.full(20, 955.0), 1000.0)  # near the best: worth its full time
    for best_low in (math.nan, 0.0, -1.0, math.inf):
        assert not cannot_win(np.full(40, 10.0), best_low), "without a best nothing is cut"
    assert not cannot_win(np.empty(0), 1000.0)


def cut_while_running(
    seed: int, *, alike: float = 0.0, noise: float = 0.1, drift: float = 0.0
) -> bool:
    """Whether a run as fast as the best's lower bound is cut at any look; its steps are blocked anew at each."""
    n, rng = 402, np.random.default_rng(seed)
    shocks = rng.normal(0, noise * math.sqrt(1 - alike**2), n)
    walk = [rng.normal(0, noise)]
    for shock in shocks[1:]:
        walk.append(alike * walk[-1] + shock)
    seconds = 1e-2 * np.exp(np.array(walk) + drift * np.linspace(1, -1, n))
    made, best = steps(seconds, np.full(n, 64.0)), 64 * (n - 2) / seconds[2:].sum()
    looks_at = range(int(EARLIEST_STOP_FRAC * n), n, 25)
    return any(cannot_win(block_rates({k: v[:m] for k, v in made.items()}), best) for m in looks_at)


@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_a_trial_that_warms_up_is_not_cut(drift: float) -> None:
    assert sum(cut_while_running(seed, drift=drift) for seed in range(30)) <= 1
    assert sum(cut_while_running(seed, drift=drift, alike=0.9) for seed in range(30)) <= 1


def test_what_other_programs_may_have_made_is_no_evidence_and_cuts_no_trial() -> None:
    seen = np.full(20, 400.0)
    assert without_others(seen, 0.0) == pytest.approx(seen)
    assert without_others(seen, -0.01) == pytest.approx(
        seen
    )  # the machine and the job are read a moment apart
    assert without_others(seen, 0.2) == pytest.approx(np.full(20, 500.0))
    for others, out in ((1.0, False), (1.7, False), (math.nan, False), (0.5, True), (0.65, False)):
        assert cannot_win(without_others(seen, others), 1000.0) == out
    # a quiet run stays evidence beside one that was disturbed
    assert cannot_win(np.concatenate([seen, without_others(np.full(20, 50.0), 1.5)]), 1000.0)
    cut = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        taken = rng.beta(2, 2, 40) * rng.uniform(0, 1)
        seconds = 1e-3 * np.exp(rng.normal(0, 0.01, 40)) / (1 - taken)
        blocks, others = 1 / seconds, float((taken * seconds).sum() / seconds.sum())
        assert not cannot_win(without_others(blocks, others), 1000.0)
        cut += cannot_win(blocks, 1000.0)
    assert cut > 50  # as it was while nobody asked who else ran
