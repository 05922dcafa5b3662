"""The one recommended setting and its reason."""

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.analysis.tournament.tournament_entries import entry, ranked, with_runs
from vitprof.analysis.tournament.entries import Entry
from vitprof.analysis.tournament.leaderboard import leaderboard
from vitprof.analysis.tournament.recommend import (
    BreakEven,
    Recommendation,
    break_even,
    can_be_fastest,
    pareto,
    recommend,
    title,
    undecided_words,
)
from vitprof.recording.columns import RunSummary

GIB = 2.0**30


def of(*made: Entry) -> Recommendation:
    found = recommend(ranked(*made))
    assert found is not None
    return found


def test_the_fastest_where_nothing_ties_with_it() -> None:
    found = of(entry("base", 1000), entry("a", 4000, workers=2), entry("b", 2000))
    assert (found.key, found.equals) == ("a/b64/w2/as-is", ())
    assert found.sentence.startswith("Use a, batch 64, 2 workers: 4,0")
    assert re.search(
        r"times that of base, batch 64 \([34]\..*3 runs\); it is practically certain",
        found.sentence,
    )
    assert "batch size" not in found.sentence


def test_a_machine_that_others_had_all_the_time_is_said() -> None:
    base, fast = entry("base", 1000), entry("a", 4000)
    found = of(
        with_runs(base, others_cores=(1.6, 1.5, 1.7)),
        with_runs(fast, others_cores=(1.8, math.nan, 1.55)),
    )
    assert found.key == fast.key
    assert (
        "No run of any setting had the machine to itself: other programs took at least 1.50"
        in found.sentence
    )
    assert "another setting can be the fastest" in found.sentence
    one = of(
        with_runs(base, others_cores=(0.0, 1.5, 1.7)),
        with_runs(fast, others_cores=(1.8, math.nan, 1.55)),
    )
    assert (
        "No run of a, batch 64 had the machine to itself: other programs took at least 1.55"
        in one.sentence
    )
    quiet = of(
        with_runs(base, others_cores=(0.0, 1.5, 1.7)),
        with_runs(fast, others_cores=(1.8, 0.1, math.nan)),
    )
    assert "to itself" not in quiet.sentence
    short = of(with_runs(base, over_epochs=(math.nan,) * 3), fast)
    assert (
        "epochs begin are in no figure: base, batch 64 did not run into a second epoch"
        in short.sentence
    )


def test_of_those_that_tie_the_cheapest() -> None:
    base = entry("base", 1000, rss_peak_bytes=GIB)
    ram = entry("ram", 4000, rss_peak_bytes=8 * GIB)
    disk = entry("disk", 4000, rss_peak_bytes=GIB, disk=5 * GIB, prepare_s=60.0)
    many = entry("many", 4000, rss_peak_bytes=1.05 * GIB, workers=8)
    few = entry("few", 4000, rss_peak_bytes=1.05 * GIB, workers=2)
    found = of(base, ram, disk, many, few)
    assert (found.key, set(found.equals)) == (few.key, {ram.key, disk.key, many.key})
    assert (
        "are as fast within 5%; none costs clearly less than few, batch 64, 2 workers"
        in found.sentence
    )
    for words in (
        "memory (1.05 GiB against up to 8.00 GiB)",
        "disk (0 B against up to 5.00 GiB)",
        "workers (2 against",
    ):
        assert words in found.sentence
    assert "base" not in found.sentence.partition("as fast within 5%")[2]
    a = entry("a", 4000, rss_peak_bytes=GIB, prepare_s=100.0)
    b = entry("b", 4000, rss_peak_bytes=1.09 * GIB)
    c = entry("c", 4000, rss_peak_bytes=3 * GIB)
    found = of(entry("base", 1000), a, b, c)
    assert found.key == b.key
    assert "memory (1.09 GiB against up to 3.00 GiB)" in found.sentence
    found = of(entry("base", 1000), entry("a", 4000), entry("b", 4000, seed=3))
    assert "none costs clearly less" in found.sentence
    known = entry("known", 4000, rss_peak_bytes=9 * GIB)
    unknown = entry("unknown", 4000, disk=math.nan)
    assert of(entry("base", 1000), unknown, known).key == known.key
    alike = [entry(f"s{i}", 4000, seed=i, noise=0) for i in range(6)]
    assert " more are as fast" in of(entry("base", 1), *alike).sentence


def test_the_baseline_is_kept_where_nothing_is_faster_or_costs_less() -> None:
    found = of(entry("base", 1000), entry("a", 500))
    assert found.sentence.startswith("Keep base, batch 64, the baseline, at ")
    assert "(over 99.9%) that no other of these is faster by more than 5%" in found.sentence
    assert found.probability == 1
    mib = 2.0**20
    base, slim = (
        entry(n, 4000, seed=s, rss_peak_bytes=r * mib)
        for n, s, r in (("base", 0, 812), ("slim", 1, 767))
    )
    found = of(base, slim)
    assert (found.key, "memory" in found.sentence) == (base.key, False)
    assert found.sentence.startswith("Keep base, batch 64")
    large = entry("large", 4000, seed=2, rss_peak_bytes=3000 * mib)
    assert (
        "none costs clearly less than base, batch 64: memory (812 MiB against up to 2.93 GiB)"
        in of(base, slim, large).sentence
    )
    less = entry("less", 4000, seed=3, rss_peak_bytes=400 * mib)
    assert of(base, less).key == less.key


def test_too_few_steps_one_run_of_each_and_failed_ones_recommend_nothing() -> None:
    short = {"summary": [RunSummary(n_steady_steps=5)]}
    found = of(
        entry("base", 1000), with_runs(entry("a", 4000), blocks_per_s=[np.full(5, 4000.0)], **short)
    )
    assert found.key is None
    assert found.sentence.startswith(
        "5 steady steps of a, batch 64, the fastest so far, are too few: make "
    )
    found = of(
        entry("base", 1000), with_runs(entry("a", 4000), blocks_per_s=[np.full(5, 100.0)], **short)
    )
    assert found.key == "base/b64/w-/as-is"
    assert "Too few steady steps to compare a, batch 64" in found.sentence
    found = of(entry("base", 1000, runs=1), entry("a", 4000, runs=1))
    assert (found.key, found.equals) == (None, ())
    assert found.sentence.startswith(
        "Too early: each setting has one run that counts, and needs two. Run more rounds. The fastest so far is "
        "a, batch 64, at "
    )
    found = of(entry("base", 1000, runs=1), entry("a", 4000, runs=1), entry("b", 2000))
    assert found.sentence.startswith("Too early: each of 2 settings has one run that counts")
    alone = of(entry("base", 1000))
    assert (
        alone.sentence
        == "Too early: only base, batch 64 has run; there is nothing to compare it with."
    )
    found = of(entry("base", 1000), entry("a", 9000, status="failed"), entry("b", 500))
    assert found.key == "base/b64/w-/as-is"
    none = leaderboard([entry("base", 1, runs=0)], baseline="base/b64/w-/as-is", n_train=0)
    assert recommend(none) is None


def test_nobody_has_to_start_more_rounds_while_it_runs() -> None:
    once = ranked(entry("base", 1000, runs=1), entry("a", 1500))
    words = "Too early: base, batch 64 has one run that counts, and needs two."
    found = recommend(once, goes_on=True)
    assert found is not None
    assert found.sentence.startswith(f"{words} It goes on by itself. The fastest so far is a")
    assert "Run more rounds" not in found.sentence
    moments = {"base": [0.2, -0.2, 0.0], "a": [-0.2, 0.15, 0.05]}
    made = [entry(name, 1000, moments=np.array(m)) for name, m in moments.items()]
    found = recommend(ranked(*made), goes_on=True)
    assert found is not None
    assert found.sentence.endswith("and 97.5% is needed: it goes on by itself.")
    spoiled = with_runs(
        entry("base", 1000, runs=1), disturbed=[np.ones(20, dtype=bool)], others_cores=[1.5]
    )
    found = recommend(ranked(spoiled, entry("a", 4000, runs=1)), goes_on=True)
    assert found is not None
    assert "disturbed every run with base, batch 64" in found.sentence
    assert found.sentence.endswith("End those programs; it goes on by itself.")


def test_what_a_reader_has_to_know_such_as_the_order_of_samples() -> None:
    found = of(entry("base", 1000), entry("a", 4000, batch_size=512))
    assert "changes how the model learns" not in of(entry("base", 1000), entry("a", 4000)).sentence
    assert "also changes how the model learns" in found.sentence
    lost = of(entry("base", 1000, runs=0), entry("a", 4000))
    assert lost.sentence.startswith(
        "Too early: only a, batch 64 has run; nothing else has given a figure yet."
    )
    lost = of(entry("base", 1000, runs=0), entry("a", 4000), entry("b", 2000))
    assert "the baseline gave no figures to compare with" in lost.sentence
    base = entry("base", 1000)
    whole = dataclasses.replace(entry("whole", 4000), shuffle="none")
    found = of(base, whole)
    assert found.key == whole.key
    assert (
        "It does not shuffle, which can cost accuracy; the fastest that shuffles all is base"
        in found.sentence
    )
    costly = entry("costly", 4000, rss_peak_bytes=9 * GIB)
    assert "shuffle" not in of(base, costly).sentence
    found = of(base, whole, costly)
    assert (found.key, found.equals) == (costly.key, (whole.key,))
    assert "As fast, but whole, batch 64 does not shuffle all samples" in found.sentence
    blocks = dataclasses.replace(whole, shuffle="block")
    assert "It shuffles blocks of neighbours only" in of(base, blocks).sentence


def test_another_order_of_a_scripts_own_batches_is_said() -> None:
    as_it_is = dataclasses.replace(entry("own", 1000), key="own-script/unchanged")
    quick = dataclasses.replace(entry("own", 4000), key="own-script/workers=2/in_order=off")
    board = leaderboard([as_it_is, quick], baseline=as_it_is.key, n_train=0)
    found = recommend(board)
    assert found is not None
    assert found.key == quick.key
    assert "Note the order: batches come as they are made, no longer in " in found.sentence


def test_epochs_that_begin_early_are_said_to_change_the_order() -> None:
    as_it_is = dataclasses.replace(entry("own", 1000), key="own-script/unchanged")
    early = dataclasses.replace(entry("own", 4000), key="own-script/across_epochs=on")
    found = recommend(leaderboard([as_it_is, early], baseline=as_it_is.key, n_train=0))
    assert found is not None
    assert "Note the order: an epoch begins before validation does" in found.sentence


def test_other_pixels_of_a_script_are_said() -> None:
    as_it_is = dataclasses.replace(entry("own", 1000), key="own-script/unchanged")
    quick = dataclasses.replace(entry("own", 4000), key="own-script/decoder=opencv", pixels="same")
    board = leaderboard([as_it_is, quick], baseline=as_it_is.key, n_train=0)
    found = recommend(board)
    assert found is not None
    assert "Note the pixels: same." in found.sentence


def test_only_settings_with_the_page_cache_of_the_baseline() -> None:
    cold, warm = entry("base", 1000, page_cache="cold"), entry("a", 4000, page_cache="warm")
    slow = entry("b", 900, page_cache="cold")
    board = ranked(cold, warm, slow)
    assert board.best == cold.key
    assert [row.standing for row in board.rows] == ["fastest", "fastest", "slower"]
    found = of(cold, warm, slow)
    assert (found.key, found.equals) == (cold.key, ())
    assert "Only settings with the page cache cold were compared" in found.sentence
    assert "were compared" not in of(cold, slow).sentence


def test_undecided_is_said_and_names_the_rivals() -> None:
    moments = {"base": [0.2, -0.2, 0.0], "a": [-0.2, 0.15, 0.05]}
    made = [entry(name, 1000, moments=np.array(m)) for name, m in moments.items()]
    board = ranked(*made, entry("slow", 200))
    found = recommend(board)
    assert found.key is None
    assert found.sentence.startswith("Undecided so far: ")
    chance = re.search(
        r"that none is faster: (\S+)%, and 97.5% is needed: run more rounds\.$", found.sentence
    )
    assert float(chance[1]) == pytest.approx(100 * found.probability, abs=0.6)
    nearly = dataclasses.replace(
        board, level=0.9993
    )  # after ten rounds; of 1,000 draws 999 are not enough
    sure = dataclasses.replace(board.rows[0], near_best=0.999)
    said = recommend(dataclasses.replace(nearly, rows=(sure, *board.rows[1:])))
    assert "is faster: 99.9%, and 99.93% is needed" in said.sentence
    assert set(found.equals) == {made[0].key, made[1].key} == set(can_be_fastest(board))
    assert can_be_fastest(ranked(entry("base", 1), entry("a", 9))) == ()


def test_what_is_undecided_is_named() -> None:
    keys = [f"a/b64/w{n}/as-is" for n in range(5)]
    assert undecided_words(keys[:1]) == "undecided whether a, batch 64, 0 workers is the fastest"
    two = "a, batch 64, 0 workers and a, batch 64, 1 worker"
    assert undecided_words(keys[:2]) == f"undecided between {two}"
    three = "a, batch 64, 0 workers; a, batch 64, 1 worker; a, batch 64, 2 workers and 2 more"
    assert undecided_words(keys) == f"undecided between {three}"


@pytest.mark.parametrize(("rounds", "least"), [(2, 8), (3, 20)])
def test_a_machine_that_is_busy_in_fits_misleads_nobody(rounds: int, least: int) -> None:
    """Runs slowed down by 30 to 60%, wholly or in part: the answer is right or undecided."""

    def slowed(blocks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= 0.3:
            return blocks
        return blocks * np.where(np.arange(20) < rng.integers(1, 21), 1 - rng.uniform(0.3, 0.6), 1)

    right = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        speeds = {"base": 500, "a": 1000, "b": 990, "c": 800}
        made = [
            entry(n, v, runs=rounds, seed=int(rng.integers(1000)), noise=0.01)
            for n, v in speeds.items()
        ]
        beside = []
        for e in made:
            seen = [slowed(o.blocks_per_s, rng) for o in e.outcomes]
            out = [mine < o.blocks_per_s for mine, o in zip(seen, e.outcomes, strict=True)]
            beside.append(with_runs(e, blocks_per_s=seen, disturbed=out))
        found = of(*beside)
        assert found.key in (None, "a/b64/w-/as-is", "b/b64/w-/as-is")
        right += found.key is not None
        unseen = of(*(with_runs(e, disturbed=[np.empty(0, dtype=bool)] * rounds) for e in beside))
        assert unseen.key in (None, "a/b64/w-/as-is", "b/b64/w-/as-is")
    assert right >= least


def pays(
    per_s: float,
    *,
    base: float = 1000.0,
    n_train: int = 60_000,
    base_prepare: float = 0.0,
    **more: float,
) -> BreakEven:
    made = [
        entry("base", base, prepare_s=base_prepare, noise=0.005),
        entry("a", per_s, noise=0.005, **more),
    ]  # type: ignore[arg-type]
    (found,) = break_even(ranked(*made, n_train=n_train))
    return found


def test_it_pays_or_it_is_not_known() -> None:
    found = pays(4000, prepare_s=100.0, stage_s=20.0)  # 60 s an epoch against 15 s
    assert found.extra_s == pytest.approx(120)
    assert found.epochs == pytest.approx(120 / 45, rel=0.01)
    assert found.low < found.epochs < found.high
    assert found.sentence == "pays for its preparation (2 min 0 s) after 3 epochs"
    assert pays(1030, prepare_s=100.0).sentence.startswith(
        "pays for its preparation (1 min 40 s) after 5"
    )
    assert " to " in pays(1030, prepare_s=100.0).sentence
    assert pays(4000, prepare_s=10.0).sentence.endswith("after 1 epoch")
    base, quick = entry("base", 1000), entry("a", 2000)
    assert break_even(ranked(base, quick)) == ()
    assert break_even(ranked(entry("base", 1000, runs=0), quick, n_train=9)) == ()
    (found,) = break_even(
        ranked(entry("base", 1000, runs=1), entry("a", 4000, runs=1, prepare_s=50.0), n_train=6000)
    )
    assert found.sentence.startswith(
        "not known: whether it is faster than the baseline is undecided"
    )
    tie = pays(1000, prepare_s=50.0)
    assert "it is as fast as the baseline, within 5%" in tie.sentence
    assert tie.high == math.inf


@pytest.mark.parametrize(
    ("per_s", "more", "epochs", "words"),
    [
        (4000, {}, 0, "faster from the first epoch on"),
        (500, {}, math.inf, "never pays: it is slower than the baseline"),
        (500, {"prepare_s": 9.0}, math.inf, "costs 9.00 s of preparation more"),
        (500, {"base_prepare": 150.0}, math.inf, "ahead for the first 2 epochs only"),
        (500, {"base_prepare": 10.0}, math.inf, "the first epoch already costs more than that"),
        (4000, {"prepare_s": math.nan}, math.nan, "not known"),
        (1000, {}, 0, "as fast as the baseline, within 5%, and needs no more preparation"),
        (1000, {"base_prepare": 50.0}, 0, "within 5% and saves 50.0 s of preparation"),
    ],
)
def test_in_words(per_s: float, more: dict[str, float], epochs: float, words: str) -> None:
    found = pays(per_s, **more)
    assert words in found.sentence
    assert found.epochs == pytest.approx(epochs, nan_ok=True)


def test_nothing_beats_the_front_and_something_beats_the_rest() -> None:
    of = {
        "a": (300, 2.0),
        "b": (300, 2.0),
        "c": (100, 1.0),
        "d": (100, 3.0),
        "e": (200, 2.0),
        "f": (900, math.nan),
    }
    made = [entry(name, speed, noise=0, runs=1, disk=disk) for name, (speed, disk) in of.items()]
    board = ranked(*made, entry("failed", 999, status="failed", disk=0.0))
    assert pareto(board, "disk_bytes") == tuple(made[i].key for i in (2, 0, 1)), (
        "a and b are alike in both"
    )
    assert pareto(board, "prepare_s") == (made[5].key,)


def beside_others(made: Entry, cores: float = 1.0) -> Entry:
    """The same runs, all of whose blocks other programs disturbed, which took `cores` of 2."""
    n = len(made.outcomes)
    return with_runs(
        made,
        others_cores=(cores,) * n,
        cores=(2.0,) * n,
        disturbed=[np.ones(20, dtype=bool)] * n,
    )


def test_what_was_faster_only_while_other_programs_ran_is_said_and_not_recommended() -> None:
    base, quick = entry("base", 1000, runs=5), entry("a", 3000, runs=5)
    slow = entry("b", 900, runs=5)
    found = of(*map(beside_others, (base, quick, slow)))
    assert found.outcome == "faster while busy"
    assert (found.key, found.recommended, found.while_busy) == (None, None, quick.key)
    first, quiet, *_ = found.sentences
    assert re.fullmatch(
        r"a, batch 64 was at least 2\.\d times as fast as base, batch 64 in each of 5 rounds, "
        r"while other programs used 1\.0 of 2 cores\.",
        first,
    )
    assert quiet == "On a quiet machine it may gain less: repeat it there for a firm number."
    assert title(found, ended=True) == "Faster while other programs ran"
    board = ranked(*map(beside_others, (base, quick, slow)), n_train=1000)
    pays_off, _ = break_even(board)
    assert pays_off.sentence.startswith("not known: ")


def test_one_title_for_each_outcome() -> None:
    base, fast = entry("base", 1000), entry("a", 4000)
    firm = of(base, fast)
    assert (firm.outcome, title(firm, ended=True)) == ("recommended", "Recommended")
    assert title(firm, ended=False) == "Best so far"
    busy = of(*(with_runs(each, others_cores=(1.6, 1.5, 1.7)) for each in (base, fast)))
    assert (busy.outcome, busy.recommended) == ("fastest while busy", None)
    assert title(busy, ended=True) == "Fastest while other programs ran"
    early = of(entry("base", 1000, runs=1), entry("a", 4000, runs=1))
    assert (early.outcome, title(early, ended=False)) == ("too early", "Not decided yet")
    assert title(early, ended=True) == "Undecided"


def test_a_setting_whose_gain_is_undecided_is_not_recommended() -> None:
    """The baseline gave no undisturbed round, and is far behind: no rival, but no comparison either."""
    base = with_runs(
        entry("base", 1000),
        others_cores=(1.5,) * 3,
        cores=(2.0,) * 3,
        disturbed=[np.ones(20, dtype=bool)] * 3,
    )
    found = of(base, entry("a", 4000), entry("b", 3000))
    assert found.key == "a/b64/w-/as-is"
    assert (found.outcome, found.recommended) == ("undecided", None)
    assert found.sentence.startswith(
        "Undecided against the baseline. Most probably the fastest: a, batch 64, 4,0"
    )
