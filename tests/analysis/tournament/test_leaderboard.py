"""The leaderboard: what is ranked, what is equal, what the order of entries must not change; the article's table."""

import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tournament.tournament_entries import entry, ranked, row_of, with_runs
from vitprof.analysis.tournament.entries import Entry, key_in_words, setting_in_words
from vitprof.analysis.tournament.leaderboard import article_table, leaderboard, runs_words
from vitprof.analysis.tournament.recommend import recommend
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve, run_name
from vitprof.recording.columns import RunSummary

BASE = "base/b64/w-/as-is"
PAIR = entry("base", 1000), entry("a", 2000)


def test_equal_faster_and_undecided_are_three_things() -> None:
    equal = told = covered = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        moments = rng.normal(0, 0.05, 3)  # the machine's, shared by all that ran in the round
        same, faster = (
            entry(name, mean, seed=seed, moments=moments + rng.normal(0, 0.005, 3))
            for name, mean in (("same", 1000), ("faster", 1100))
        )
        board = ranked(entry("base", 1000, seed=seed, moments=moments), same, faster)
        row, quick = row_of(board, same), row_of(board, faster)
        assert row.against_baseline in ("equal", "undecided")
        equal += row.against_baseline == "equal"
        told += (
            quick.against_baseline == "faster"
            and row.standing == "slower"
            and board.best == faster.key
        )
        covered += quick.speed_up_low <= 1.1 <= quick.speed_up_high
    assert equal >= 7
    assert told >= 19
    assert covered >= 18


def test_moments_of_the_machine_cancel_and_a_settings_noise_is_its_own() -> None:
    moments = np.array([-0.4, 0.0, 0.4])
    quick = entry("a", 1200, moments=moments)
    row = row_of(ranked(entry("base", 1000, moments=moments), quick), quick)
    assert row.high / row.low > 2  # what was seen of it by itself
    assert row.speed_up_high / row.speed_up_low < 1.25
    assert row.against_baseline == "faster"
    # as seen beside other work: two rounds, 7,498 and 7,539 samples/s against 3,471 and 1,687
    quiet = entry("quiet", 7500, runs=2, moments=np.log([7498 / 7500, 7539 / 7500]))
    board = ranked(entry("base", 3471, runs=2, moments=np.log([1, 1687 / 3471])), quiet)
    row, answer = row_of(board, quiet), recommend(board)
    assert row.high / row.low < 1.2
    assert board.best == quiet.key
    assert answer.key in (quiet.key, None), "never the baseline"
    (alone,) = ranked(dataclasses.replace(quiet, key=BASE)).rows
    assert row.high / row.low == pytest.approx(alone.high / alone.low, rel=0.05)
    early, late = entry("base", 1000), with_runs(entry("a", 2000), round=(11, 12, 13))
    row = row_of(ranked(early, late), late)
    assert row.speed_up_low < row.speed_up < row.speed_up_high
    assert row.speed_up == pytest.approx(2, rel=0.03)


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.floats(1, 1e6), min_size=1, max_size=5))
def test_the_order_of_the_entries_changes_nothing(
    shuffler: random.Random, speeds: list[float]
) -> None:
    entries = [entry(f"s{i}", speed, runs=2, seed=i) for i, speed in enumerate(speeds)]
    shuffled = list(entries)
    shuffler.shuffle(shuffled)
    key = entries[0].key
    board = leaderboard(entries, baseline=key, n_train=100)
    assert repr(leaderboard(shuffled, baseline=key, n_train=100)) == repr(board)
    places = [1 if row.standing == "equal" else place for place, row in enumerate(board.rows, 1)]
    assert [row.rank for row in board.rows] == places
    gains = [row.speed_up for row in board.rows]
    assert gains == sorted(gains, reverse=True)
    for row in board.rows:
        assert row.low <= row.samples_per_s <= row.high
        assert row.speed_up_low <= row.speed_up <= row.speed_up_high


def test_what_failed_or_has_no_figures_is_not_ranked_and_a_failed_run_does_not_count() -> None:
    waiting = dataclasses.replace(entry("waiting", 1), outcomes=(), status="waiting")
    failed = entry("failed", 9000, status="failed", reason="out of memory")
    cut = entry("cut", 500, status="cut", runs=1)
    board = ranked(waiting, failed, entry("base", 1000), cut, baseline=BASE)
    ranks = [("base", 1), ("cut", 2), ("failed", None), ("waiting", None)]
    assert ([(row.entry.strategy, row.rank) for row in board.rows], board.best) == (ranks, BASE)
    base, slow, lost, none = board.rows
    assert (base.speed_up, base.against_baseline, base.standing, slow.n_runs) == (
        1,
        "",
        "fastest",
        1,
    )
    assert (lost.samples_per_s, lost.standing) == (pytest.approx(9000, rel=0.02), "")
    assert (math.isnan(none.samples_per_s), math.isnan(none.speed_up), none.against_baseline) == (
        True,
        True,
        "",
    )
    assert leaderboard([waiting], baseline=waiting.key, n_train=0).best is None
    good = entry("base", 1000, runs=2)
    lost = dataclasses.replace(good.outcomes[0], status="failed", blocks_per_s=np.full(20, 1.0))
    odd = dataclasses.replace(
        good.outcomes[1], blocks_per_s=np.array([0.0, math.nan, 500.0, math.inf])
    )
    mixed = dataclasses.replace(good, outcomes=(lost, odd, *good.outcomes))
    alone, row = (ranked(e, baseline=BASE).rows[0] for e in (good, mixed))
    assert runs_words(row) == "2"
    assert (
        runs_words(dataclasses.replace(row, entry=dataclasses.replace(mixed, n_made=4))) == "2 of 4"
    )
    expected = (alone.samples_per_s, alone.low, alone.high, 2, 200)
    assert (row.samples_per_s, row.low, row.high, row.n_runs, row.n_steps) == expected


def of_steps(made: Entry, steps: int) -> Entry:
    """An entry with one run, of fewer steps than make 20 blocks."""
    blocks = made.outcomes[0].blocks_per_s[:steps]
    return with_runs(made, blocks_per_s=[blocks], summary=[RunSummary(n_steady_steps=steps)])


def test_few_blocks_of_many_steps_are_enough_and_few_steps_are_not() -> None:
    """A loader that stalls with every 40th batch: five blocks of 40 steps in each run."""
    made = [with_runs(e, blocks_per_s=[o.blocks_per_s[:5] for o in e.outcomes]) for e in PAIR]
    assert [row.too_few for row in ranked(*made).rows] == [None, None]
    row = ranked(*(of_steps(e, 3) for e in PAIR)).rows[0]
    assert row.speed_up == pytest.approx(2, rel=0.05)
    assert (math.isnan(row.speed_up_low), math.isnan(row.low)) == (True, True)
    assert (row.rank, row.too_few, row.against_baseline) == (1, 3, "undecided")
    board = ranked(of_steps(PAIR[0], 19), PAIR[1])
    assert [row.too_few for row in board.rows] == [None, 19], "of the baseline"
    assert (board.rows[0].against_baseline, math.isfinite(board.rows[0].low)) == ("undecided", True)
    assert not any("equal" in (row.against_baseline, row.standing) for row in board.rows)


def test_alike_to_the_last_digit_is_equal_and_so_is_one_percent_more() -> None:
    """On a simulated device every step takes the same time."""
    speeds = {"base": 1000, "same": 1000, "a": 1010, "b": 1060}
    board = ranked(*(entry(n, v, noise=0) for n, v in speeds.items()))
    assert [row.against_baseline for row in board.rows] == ["faster", "equal", "", "equal"]
    assert board.rows[3].speed_up == pytest.approx(1)
    assert [row.near_best for row in board.rows] == [1, 1, 0, 0]


def test_rank_standing_speed_up_and_recommendation_say_the_same() -> None:
    """Settings within 8% of each other on a machine whose moments differ: whatever is known of them."""
    seen = set()
    for seed in range(18):
        rng = np.random.default_rng(seed)
        made = [
            entry(
                name,
                1000 * (1 + gain),
                seed=seed,
                noise=0.01,
                moments=rng.normal(0, 0.01 + 0.02 * (seed % 3), 4),
            )
            for name, gain in zip(("base", "a", "b", "c"), rng.uniform(0, 0.08, 4), strict=True)
        ]
        board = ranked(*made, baseline=BASE)
        answer, base, first = recommend(board), board.row(BASE), board.rows[0]
        for place, row in enumerate(board.rows, 1):
            assert row.rank == (1 if row.standing in ("fastest", "equal") else place)
            if row.key in (answer.key, *answer.equals) and answer.key:
                assert row.standing in ("fastest", "equal")
            if row.against_baseline in ("faster", "slower"):
                assert (row.speed_up > 1) == (row.against_baseline == "faster")
            seen.add(row.standing)
        if base is not first:
            mirrored = {"slower": "faster", "equal": "equal", "undecided": "undecided"}
            assert first.against_baseline == mirrored[base.standing]
        if answer.key and first.key not in (answer.key, *answer.equals):
            assert "measured faster, but its runs differ too much" in answer.sentence
    assert seen == {"fastest", "equal", "undecided", "slower"}


def test_what_is_recommended_does_not_depend_on_what_it_is_compared_with() -> None:
    made = [
        entry("base", 1000),
        entry("a", 4000),
        entry("b", 4000, seed=3),
        entry("c", 9000, page_cache="cold"),
    ]
    own, *others = (recommend(ranked(*made, baseline=e.key), keep=BASE) for e in made)
    assert {(found.key, found.equals) for found in others if found} == {(own.key, own.equals)}


def test_throughput_is_over_time_and_figures_are_those_of_the_runs_and_of_epochs() -> None:
    blocks = np.array([100.0, 300.0] * 10)  # equally many samples each: 150 a second over all
    (row,) = ranked(with_runs(entry("base", 1), blocks_per_s=[blocks] * 3), n_train=600).rows
    assert (row.samples_per_s, row.epoch_s) == (pytest.approx(150), pytest.approx(4))
    assert row.epoch_low == pytest.approx(600 / row.high)
    base = entry("base", 1000, epoch_s=7.0, n_epochs_measured=2)
    for measured, expected in ((1, pytest.approx([7, 20])), (0, pytest.approx([6, 12], rel=0.02))):
        board = ranked(
            base, entry("a", 500, epoch_s=20.0, n_epochs_measured=measured), n_train=6000
        )
        assert [row.epoch_s for row in board.rows] == expected
    made = entry(
        "base",
        1000,
        gpu_mem_peak_bytes=5e8,
        gpu_util_pct_mean=40.0,
        device_idle_frac=0.5,
        rss_peak_bytes=2e9,
    )
    first, *others = (run.summary or RunSummary() for run in made.outcomes)
    worst = dataclasses.replace(first, gpu_mem_peak_bytes=6e8, gpu_util_pct_mean=math.nan)
    (row,) = ranked(with_runs(made, summary=[worst, *others])).rows
    assert (row.gpu_mem_bytes, row.gpu_util_pct, row.device_idle_frac, row.rss_bytes) == (
        6e8,
        40,
        0.5,
        2e9,
    )
    assert math.isnan(row.epoch_s)
    assert ranked(with_runs(made, summary=[None] * 3)).rows[0].n_steps == 0, "while they run"


@pytest.mark.parametrize(("keys", "baseline"), [(("a", "a"), "a/b64/w-/as-is"), (("a", "b"), "c")])
def test_keys_are_checked(keys: tuple[str, ...], baseline: str) -> None:
    made: list[Entry] = [entry(key, 1) for key in keys]
    with pytest.raises(ValueError, match=r"same key|not one of"):
        leaderboard(made, baseline=baseline, n_train=0)


def test_after_one_round_of_all_nothing_but_figures_is_known() -> None:
    board = ranked(entry("base", 1000, runs=1), entry("a", 2000, runs=1), n_train=600)
    for row in board.rows:
        assert all(math.isnan(value) for value in (row.low, row.epoch_high, row.near_best))
        assert 0.95 < row.within_low / row.samples_per_s < 1
    quick, base = board.rows
    assert math.isnan(quick.speed_up_low)
    assert (quick.against_baseline, quick.standing, base.standing) == (
        "undecided",
        "fastest",
        "undecided",
    )
    assert quick.too_few is None


def test_nothing_is_the_fastest_before_two_settings_have_a_round_that_counts() -> None:
    """It called the unchanged script the fastest so far when only that had run."""
    alone = ranked(entry("base", 1000, runs=1), entry("a", 2000, runs=0))
    assert (alone.rows[0].standing, alone.fastest, alone.why_no_fastest) == ("undecided", None, "")
    mask = np.ones(20, dtype=bool)
    spoiled = [
        with_runs(entry(name, per_s, runs=1), disturbed=[mask], others_cores=[1.5])
        for name, per_s in (("base", 1000), ("a", 2000))
    ]
    board = ranked(*spoiled)
    assert {row.standing for row in board.rows} == {"undecided"}
    assert board.why_no_fastest == "no round counts yet: other programs ran in each"
    one = ranked(spoiled[0], entry("a", 2000, runs=1))
    assert one.fastest is None
    both = ranked(entry("base", 1000, runs=1), entry("a", 2000, runs=1))
    assert both.fastest is both.rows[0]
    assert both.why_no_fastest == ""


def test_the_slow_drive_says_that_it_is_one() -> None:
    assert setting_in_words(entry("staged", 1)) == "staged (throttled), batch 64"
    assert (
        key_in_words("slow-drive/b32/w0/cold")
        == "slow-drive (throttled), batch 32, 0 workers, cold cache"
    )
    assert setting_in_words(dataclasses.replace(entry("files", 1), throttled=True)).startswith(
        "files (throttled), "
    )


def test_threads_are_threads_as_in_the_names_of_runs() -> None:
    assert key_in_words("threads/b16/w2/as-is") == "threads, batch 16, 2 threads"
    assert key_in_words("prefetch/b16/w2/as-is") == "prefetch, batch 16, 2 workers"
    other_loader = key_in_words("workers/b16/w1/as-is/loader threads")
    assert other_loader == "workers, batch 16, 1 thread, loader threads"
    for name in ("threads", "prefetch"):
        config = resolve(RunConfig(strategy=name, dataset="photos", batch_size=16, workers=2))
        counted = key_in_words(f"{name}/b16/w2/as-is").split(", ")[-1]
        assert counted in run_name(config).split(", ")


def test_rows_are_settings_and_columns_batch_sizes() -> None:
    slow = entry("per-sample", 1000, batch_size=1000)
    made = [
        entry("pt-memory", 9000, batch_size=1000, gpu_mem_peak_bytes=1.7e9, gpu_util_pct_mean=30.0),
        entry("pt-memory", 5000, batch_size=500),
        slow,
        entry("pt-memory", 8000, batch_size=1000, workers=2, page_cache="cold"),
        entry(
            "hdf5",
            100,
            batch_size=5000,
            runs=0,
            status="refused",
            reason="batch is larger than the set",
        ),
    ]
    table = article_table(leaderboard(made, baseline=slow.key, n_train=60_000))
    assert table.batch_sizes == (500, 1000, 5000)
    assert [row.name for row in table.lines] == [
        "pt-memory",
        "pt-memory, 2 workers, cold cache",
        "per-sample",
        "hdf5",
    ]
    first = table.lines[0].cells
    assert [cell.key if cell else None for cell in first] == [made[1].key, made[0].key, None]
    assert first[1].epoch_s == pytest.approx(60 / 9, rel=0.02)
    assert first[1].epoch_low < first[1].epoch_s < first[1].epoch_high
    assert (first[1].gpu_mem_bytes, first[1].gpu_util_pct) == (1.7e9, 30)
    assert first[1].speed_up == pytest.approx(9, rel=0.02)
    refused = table.lines[3].cells[2]
    assert (refused.entry.status, refused.entry.reason) == (
        "refused",
        "batch is larger than the set",
    )
    assert math.isnan(refused.epoch_s)
    assert table.lines[3].cells[:2] == (None, None)


def test_settings_that_differ_in_more_have_a_line_each() -> None:
    made = entry("a", 1000, workers=2)
    factors = [dataclasses.replace(made, key=f"{made.key}/prefetch factor {n}") for n in (2, 4)]
    table = article_table(ranked(*factors))
    names = {line.name for line in table.lines}
    assert names == {"a, 2 workers, prefetch factor 2", "a, 2 workers, prefetch factor 4"}


def beside_others(made: Entry, cores: float = 1.0) -> Entry:
    """The same runs, all of whose blocks other programs disturbed, which took `cores` of 2."""
    runs = tuple(
        dataclasses.replace(run, others_cores=cores, cores=2.0, disturbed=np.ones(20, dtype=bool))
        for run in made.outcomes
    )
    return dataclasses.replace(made, outcomes=runs)


def test_far_faster_in_disturbed_rounds_is_an_outcome_of_its_own() -> None:
    base, quick = entry("base", 1000, runs=4), entry("a", 3000, runs=4)
    row = row_of(ranked(beside_others(base), beside_others(quick)), quick)
    assert row.against_baseline == "faster while busy"
    assert row.while_busy is not None
    assert row.while_busy.times == pytest.approx(3, abs=0.2)
    assert not math.isfinite(row.speed_up_low), "it is no firm ratio"
    few = row_of(ranked(beside_others(entry("base", 1000)), beside_others(entry("a", 3000))), quick)
    assert (few.against_baseline, few.while_busy) == ("undecided", None)


def test_quiet_rounds_decide_whatever_disturbed_ones_show() -> None:
    base, quick = entry("base", 1000, runs=4), entry("a", 3000, runs=4)
    firm = row_of(ranked(base, quick), quick)
    assert (firm.against_baseline, firm.while_busy) == ("faster", None)

    # seven rounds: three quiet ones, in which both are as fast, and four that were disturbed
    def with_quiet(disturbed: Entry, quiet: Entry) -> Entry:
        later = [dataclasses.replace(run, round=run.round + 4) for run in quiet.outcomes]
        return dataclasses.replace(disturbed, outcomes=(*disturbed.outcomes, *later))

    as_fast = row_of(
        ranked(
            with_quiet(beside_others(base), entry("base", 1000)),
            with_quiet(beside_others(quick), entry("a", 1000)),
        ),
        quick,
    )
    assert as_fast.against_baseline == "equal"
    assert as_fast.while_busy is None


def test_what_cannot_be_used_is_not_called_faster() -> None:
    base, quick = entry("base", 1000, runs=4), entry("a", 3000, runs=4)
    failed = dataclasses.replace(beside_others(quick), status="failed", reason="other samples")
    assert row_of(ranked(beside_others(base), failed), failed).while_busy is None
