"""Break-even, against total times counted epoch by epoch; the Pareto front, against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tournament.tournament_entries import entry
from vitprof.analysis import tournament


def of(
    per_s: float, *, base: float = 1000.0, n_train: int = 60_000, base_prepare: float = 0.0, **more: float
) -> tournament.BreakEven:
    made = [entry("base", base, prepare_s=base_prepare, noise=0.005), entry("a", per_s, noise=0.005, **more)]  # type: ignore[arg-type]
    (found,) = tournament.break_even(tournament.leaderboard(made, baseline=made[0].key, n_train=n_train))
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.floats(200, 5000), st.floats(0, 500), st.floats(0, 500))
def test_from_there_on_the_total_is_lower(per_s: float, extra: float, base_prepare: float) -> None:
    made = [
        entry("base", 1000, prepare_s=base_prepare, noise=0, runs=2),
        entry("a", per_s, noise=0, prepare_s=extra, runs=2),
    ]
    board = tournament.leaderboard(made, baseline=made[0].key, n_train=6000)
    (found,) = tournament.break_even(board)
    rows = {row.entry.strategy: row for row in board.rows}

    def ahead(epochs: int) -> bool:
        totals = {name: tournament.setup_s(row) + epochs * row.epoch_s for name, row in rows.items()}
        return totals["a"] < totals["base"] - 1e-9

    assert found.low <= found.epochs <= found.high
    if math.isinf(found.epochs):
        assert not ahead(10**7)
    else:
        assert ahead(math.floor(found.epochs) + 1) or found.gain_s < 1e-6
        assert found.epochs < 1e-6 or not ahead(math.ceil(found.epochs) - 1)


def test_it_pays() -> None:
    found = of(4000, prepare_s=100.0, stage_s=20.0)  # 60 s an epoch against 15 s
    assert (found.extra_s, found.gain_s) == (pytest.approx(120), pytest.approx(45, rel=0.01))
    assert found.epochs == pytest.approx(120 / 45, rel=0.01)
    assert found.low < found.epochs < found.high
    assert found.sentence == "pays for its preparation (2 min 0 s) after 3 epochs"
    assert of(1030, prepare_s=100.0).sentence.startswith("pays for its preparation (1 min 40 s) after 5")
    assert " to " in of(1030, prepare_s=100.0).sentence
    assert of(4000, prepare_s=10.0).sentence.endswith("after 1 epoch")


@pytest.mark.parametrize(
    ("per_s", "more", "epochs", "words"),
    [
        (4000, {}, 0, "faster from the first epoch on"),
        (4000, {"base_prepare": 50.0}, 0, "faster from the first epoch on"),
        (500, {}, math.inf, "never pays: it is slower than the baseline"),
        (500, {"prepare_s": 9.0}, math.inf, "costs 9.00 s of preparation more"),
        (500, {"base_prepare": 150.0}, math.inf, "ahead for the first 2 epochs only"),
        (500, {"base_prepare": 10.0}, math.inf, "the first epoch already costs more than that"),
        (4000, {"prepare_s": math.nan}, math.nan, "not known"),
    ],
)
def test_in_words(per_s: float, more: dict[str, float], epochs: float, words: str) -> None:
    found = of(per_s, **more)
    assert words in found.sentence
    assert found.epochs == pytest.approx(epochs, nan_ok=True)


def test_a_tie_pays_for_nothing() -> None:
    found = of(1000, prepare_s=50.0)
    assert "it is as fast as the baseline, within 5%" in found.sentence
    assert found.high == math.inf
    assert of(1000).sentence == "as fast as the baseline, within 5%, and needs no more preparation"
    assert "within 5% and saves 50.0 s of preparation" in of(1000, base_prepare=50.0).sentence


def test_of_one_run_it_is_not_known() -> None:
    made = [entry("base", 1000, runs=1), entry("a", 4000, runs=1, prepare_s=50.0)]
    (found,) = tournament.break_even(tournament.leaderboard(made, baseline=made[0].key, n_train=6000))
    assert found.sentence.startswith("not known: whether it is faster than the baseline is undecided")


def test_without_a_baselines_epoch_there_is_none() -> None:
    made = [entry("base", 1000), entry("a", 2000)]
    assert tournament.break_even(tournament.leaderboard(made, baseline=made[0].key, n_train=0)) == ()
    made[0] = entry("base", 1000, runs=0)
    assert tournament.break_even(tournament.leaderboard(made, baseline=made[0].key, n_train=9)) == ()


points = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6) | st.just(math.nan)), min_size=1, max_size=12)


def board_of(made: list[tuple[float, float]]) -> tournament.Leaderboard:
    entries = [entry(f"s{i:02}", 100.0 * speed, noise=0, runs=1, disk=disk) for i, (speed, disk) in enumerate(made)]
    return tournament.leaderboard(entries, baseline=entries[0].key, n_train=0)


def beats(a: tournament.LeaderboardRow, b: tournament.LeaderboardRow) -> bool:
    costs = tournament.cost(a, "disk_bytes"), tournament.cost(b, "disk_bytes")
    no_worse = a.samples_per_s >= b.samples_per_s and costs[0] <= costs[1]
    return no_worse and (a.samples_per_s > b.samples_per_s or costs[0] < costs[1])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(points)
def test_nothing_beats_the_front_and_something_beats_the_rest(made: list[tuple[float, float]]) -> None:
    board = board_of(made)
    front = tournament.pareto(board, "disk_bytes")
    assert len(set(front)) == len(front)
    known = [row for row in board.rows if not math.isnan(tournament.cost(row, "disk_bytes"))]
    for row in known:
        assert (row.key not in front) == any(beats(other, row) for other in known)
    assert set(front) <= {row.key for row in known}
    on = [row for key in front if (row := board.row(key)) is not None]
    assert [tournament.cost(row, "disk_bytes") for row in on] == sorted(
        tournament.cost(row, "disk_bytes") for row in on
    )


def test_what_is_not_ranked_is_not_on_it() -> None:
    made = [entry("base", 100, rss_peak_bytes=2.0), entry("failed", 900, status="failed", rss_peak_bytes=1.0)]
    board = tournament.leaderboard(made, baseline=made[0].key, n_train=0)
    assert tournament.pareto(board, "rss_bytes") == (made[0].key,)
    assert tournament.pareto(board, "prepare_s") == (made[0].key,)
