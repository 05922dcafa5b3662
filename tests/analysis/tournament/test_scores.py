"""Scores: intervals over few rounds hold the truth, machines that are busy in fits mislead nobody."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.analysis.tournament.tournament_entries import entry
from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.tournament import leaderboard, scores, spoiled_words
from vitprof.analysis.tournament.scores import spoiled


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "rounds"), [(2, 3), (4, 5), (6, 2)])
def test_the_interval_holds_the_truth(settings: int, rounds: int) -> None:
    """Runs differ by 1% beyond what their blocks show; of 120 intervals of 95%, 107 or fewer hold it by chance
    in 1%."""
    held = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        made = [
            entry(f"s{i}", 1000, seed=seed, runs=rounds, moments=rng.normal(0, 0.01, rounds)) for i in range(settings)
        ]
        row = leaderboard(made, baseline=made[0].key, n_train=0).row(made[1].key)
        assert row is not None
        held += row.speed_up_low <= 1 <= row.speed_up_high
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


def test_a_round_that_others_slowed_down_counts_little() -> None:
    quiet = scores.rounds_of(entry("a", 1000))
    spoiled = {**quiet, 2: quiet[2] * 0.5}
    assert scores.score(spoiled, "a", 0).value == pytest.approx(scores.score(quiet, "a", 0).value, abs=0.02)
    alike = dict.fromkeys(quiet, 1.0)
    assert scores.throughput(spoiled, alike, "a", 0).value < 0.8 * scores.throughput(quiet, alike, "a", 0).value


def test_throughput_is_all_samples_over_all_time() -> None:
    """A run of 900 samples at 300/s and one of 100 samples at 50/s: 1,000 samples in 5 s; the second has few blocks."""
    runs = {1: np.array([200.0, 600.0] * 10), 2: np.full(7, 50.0)}
    found = scores.throughput(runs, {1: 900.0, 2: 100.0}, "a", 0)
    assert found.value == pytest.approx(200)
    assert found.low < 200 < found.high
    uneven = {1: np.full(20, 300.0), 2: np.array([25.0, 50.0, 100.0] * 3)}  # 7/3 times 1/50 s for a sample
    assert scores.throughput(uneven, {1: 900.0, 2: 100.0}, "a", 0).value == pytest.approx(1000 / (3 + 7 / 3))


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
    made = entry("a", 1000, moments=np.log(slower))
    outcomes = [dataclasses.replace(o, others_cores=n) for o, n in zip(made.outcomes, others, strict=True)]
    made = dataclasses.replace(made, outcomes=tuple(outcomes))
    assert spoiled(made) == out
    assert set(scores.rounds_of(made)) == {1, 2, 3} - set(out)
    (row,) = leaderboard([made], baseline=made.key, n_train=0).rows
    assert (row.n_runs, row.spoiled) == (3 - len(out), out)
    assert (
        spoiled_words(row)
        == {
            0: "",
            1: "round 2 not counted: other programs used 1.5 CPU cores",
            2: "rounds 1 and 2 not counted: other programs used 1.5 CPU cores",
        }[len(out)]
    )
    many = dataclasses.replace(row, spoiled=dict.fromkeys((1, 3, 4), 1.6))
    assert spoiled_words(many) == "rounds 1, 3 and 4 not counted: other programs used 1.6 CPU cores"


def test_a_loader_that_is_uneven_by_itself_gains_little() -> None:
    """Every tenth batch stalls for as long as ten others take: blocks of 20 steps hold two stalls each."""
    rng = np.random.default_rng(0)
    seconds = np.where(np.arange(400) % 10 == 9, 0.010, 0.001) * np.exp(rng.normal(0, 0.05, 400))
    blocks = 20 / seconds.reshape(20, 20).sum(axis=1)
    known = scores.score({1: blocks, 2: blocks, 3: blocks}, "a", 0)
    assert math.exp(known.value) == pytest.approx(400 / seconds.sum(), rel=0.03)


def test_looks_err_by_five_percent_together() -> None:
    assert scores.sure_level(1) == scores.sure_level(3) == pytest.approx(0.975)
    assert math.fsum(1 - scores.sure_level(n) for n in range(3, 1000)) < 0.05


def test_what_ran_once_holds_up_the_answer_while_it_can_be_the_fastest() -> None:
    known = {
        name: scores.score(scores.rounds_of(entry(name, speed)), name, 0) for name, speed in (("a", 1000), ("b", 700))
    }
    assert scores.near_best(known) == {"a": 1, "b": 0}
    once = scores.Score(math.log(900), np.full(1000, math.nan))
    assert all(math.isnan(p) for p in scores.near_best(known | {"c": once}).values())
    found = scores.near_best(known | {"c": once}, out={"c"})
    assert (found["a"], math.isnan(found["c"])) == (1, True)
    slow = scores.Score(math.log(400), once.draws)
    assert scores.near_best(known | {"c": slow})["a"] == 1


def test_students_t() -> None:
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 10: 2.228, 30: 2.042}
    for df, value in known.items():
        assert scores.student_t(df) == pytest.approx(value, rel=0.008)
