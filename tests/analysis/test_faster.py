"""The rule for "A is faster than B": which figure it is, how often its interval holds the truth,
what it says."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from vitprof.analysis import faster
from vitprof.analysis.arrays import Interval
from vitprof.analysis.faster import NearBest, RunBlocks, Speed, Speeds

Rng = np.random.Generator


def run(
    per_s: float,
    rng: Rng,
    *,
    blocks: float = 0.02,
    alike: float = 0.0,
    of_run: float = 0.0,
    n: int = 20,
) -> RunBlocks:
    """A run whose blocks vary by the share `blocks`, with the autocorrelation `alike`, and which as
    a whole is `of_run` faster, on logarithms."""
    off = rng.normal(0, 1, n)
    for i in range(1, n):
        off[i] = alike * off[i - 1] + math.sqrt(1 - alike**2) * off[i]
    seconds = np.exp(blocks * off - of_run) / per_s
    return RunBlocks(np.ones(n), seconds)


def rounds(per_s: float, rng: Rng, moments: np.ndarray, between: float = 0.0, **how: float) -> dict:
    """Runs in rounds 1, 2, ... in which the machine is faster by `moments`; a setting's own runs
    vary by `between`."""
    own = moments + rng.normal(0, between, len(moments))
    return {n: run(per_s, rng, of_run=off, **how) for n, off in enumerate(own, 1)}


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Interval(1.0, 0.96, 1.04), "equal"),
        (Interval(1.02, 1.01, 1.03), "equal"),
        (Interval(1.04, 1.01, 1.07), "faster"),
        (Interval(0.5, 0.4, 0.6), "slower"),
        (Interval(1.0, 0.94, 1.01), "undecided"),
        (Interval(2.0, math.nan, math.nan), "undecided"),
    ],
)
def test_equal_is_what_is_known_to_differ_little(ratio: Interval, said: str) -> None:
    assert faster.relation(ratio) == said


def test_levels() -> None:
    assert faster.sure_level(1) == faster.sure_level(3) == pytest.approx(0.975)
    assert math.fsum(1 - faster.sure_level(n) for n in range(3, 1000)) < 0.05


def test_the_figure_is_all_samples_over_all_time_and_the_ratio_is_that_of_the_figures() -> None:
    # 900 samples at 300/s and 100 samples at 50/s: 1,000 samples in 5 s
    mine = {
        1: RunBlocks(np.full(20, 45.0), 45 / np.array([200.0, 600.0] * 10)),
        2: RunBlocks(np.full(10, 10.0), np.full(10, 0.2)),
    }
    base = {n: RunBlocks(np.full(20, 5.0), np.full(20, 0.1)) for n in (1, 2)}
    found = faster.speeds({"mine": mine, "base": base})
    assert found.by_key["mine"].per_s == pytest.approx(200)
    assert found.interval("mine").value == pytest.approx(200)
    assert found.ratio("mine", "base").value == pytest.approx(200 / 50)
    assert faster.per_s({}) != faster.per_s({})
    assert faster.speeds({"a": {}}).by_key == {}


def test_a_heavy_tail_is_judged_by_all_of_its_time() -> None:
    """Three of four blocks are far faster than the other setting's: by its best fifth it would win
    by 1.7."""
    rng = np.random.default_rng(1)
    uneven = {
        n: RunBlocks(np.ones(40), np.where(rng.permutation(40) < 10, 5.0, 1.0) / 1700)
        for n in (1, 2, 3)
    }
    even = {n: run(1000, rng, n=40) for n in (1, 2, 3)}
    ratio = faster.speeds({"uneven": uneven, "even": even}).ratio("uneven", "even")
    assert ratio.value == pytest.approx(0.85, rel=0.01)
    assert ratio.low < 0.85 < ratio.high
    assert faster.relation(ratio) != "faster"


Made = Callable[[Rng], dict[str, dict[int, RunBlocks]]]
DRIFT = np.array([-0.3, 0.0, 0.3, 0.1])


def two(n: int, **how: float) -> Made:
    return lambda rng: {
        "a": rounds(1100, rng, rng.permutation(DRIFT[:n]), **how),
        "b": rounds(1000, rng, np.zeros(n), **how),
    }


def paired(n: int, n_settings: int = 2, moody: float = 0.0, **how: float) -> Made:
    """Settings that share the machine's moments; `moody`: how much more the first one's runs
    vary.
    """

    def made(rng: Rng) -> dict[str, dict[int, RunBlocks]]:
        moments = rng.normal(0, 0.2, n)
        more = {f"c{i}": rounds(900 - i, rng, moments, **how) for i in range(n_settings - 2)}
        first = dict(how)
        first["between"] = max(moody, how.get("between", 0.0))
        return {
            "a": rounds(1100, rng, moments, **first),
            "b": rounds(1000, rng, moments, **how),
            **more,
        }

    return made


@pytest.mark.parametrize(
    "made",
    [
        paired(2, between=0.02),
        paired(3),
        paired(3, between=0.005, blocks=0.02),
        paired(3, between=0.02),
        paired(5, between=0.02),
        paired(3, 5, between=0.02),
        paired(4, 5, between=0.005, moody=0.08),
        paired(3, blocks=0.5),
    ],
    ids=["2 rounds", "blocks", "both", "runs", "5 rounds", "5 settings", "a moody one", "tail"],
)
def test_the_interval_holds_the_truth(made: Made) -> None:
    """Of 300 intervals at their level, chance makes 270 or fewer hold in less than one of 10,000
    for 95%."""
    held = 0
    for seed in range(300):
        found = faster.speeds(made(np.random.default_rng(seed))).ratio("a", "b")
        held += found.low <= 1.1 <= found.high
    assert held > 270


@pytest.mark.parametrize("n", [8, 20])
def test_blocks_that_are_alike_make_no_wrong_answers(n: int) -> None:
    """Of 300 answers after three rounds, chance makes 19 and more wrong in less than one of 10,000
    for 2.5%. Where neighbours were taken for independent 27 and more were."""
    wrong = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        how = {"blocks": 0.2, "alike": 0.8, "n": n}
        made = {key: rounds(1000, rng, np.zeros(3), **how) for key in ("a", "b")}
        found = faster.speeds(made).ratio("a", "b")
        wrong += not found.low <= 1 <= found.high
    assert wrong < 19


@pytest.mark.parametrize("n", [2, 3, 5])
def test_with_two_settings_and_even_blocks_it_is_the_paired_t_test(n: int) -> None:
    """Around another figure, that of all samples over all time. To four digits: blocks that are even
    are taken to have a little noise."""
    rng = np.random.default_rng(0)
    moments = np.array([0.3, -0.2, 0.1, 0.0, 0.4])[:n]
    off = np.array([0.01, 0.05, 0.02, 0.03, -0.01])[:n]
    made = {
        "a": {i: run(1000, rng, blocks=0, of_run=each) for i, each in enumerate(moments + off)},
        "b": {i: run(1000, rng, blocks=0, of_run=each) for i, each in enumerate(moments)},
    }
    low, high = (math.log(end) for end in faster.speeds(made).ratio("a", "b")[1:])
    expected = stats.ttest_rel(moments + off, moments).confidence_interval(faster.sure_level(n))
    assert high - low == pytest.approx(expected.high - expected.low, rel=1e-4)


def test_noise_of_two_sides_together_has_the_degrees_of_freedom_of_welchs_test() -> None:
    mine = np.array([1.0, 1.2, 0.9, 1.4])
    base = np.array([2.0, 2.01, 2.03])
    parts = [faster.LogNoise(stats.sem(side) ** 2, len(side) - 1) for side in (mine, base)]
    found = faster.noise_of_sum(parts)
    welch = stats.ttest_ind(mine, base, equal_var=False)
    assert found.df == pytest.approx(welch.df)
    difference = mine.mean() - base.mean()
    assert difference / math.sqrt(found.variance) == pytest.approx(welch.statistic)


def test_moments_of_the_machine_cancel_and_the_noise_of_a_setting_is_its_own() -> None:
    rng = np.random.default_rng(0)
    moments = np.array([-0.4, 0.0, 0.4])
    even = {key: rounds(1000, rng, moments, blocks=0.01) for key in "abc"}
    before = faster.speeds(even)
    assert before.ratio("a", "b").high / before.ratio("a", "b").low < 1.1
    assert before.interval("a").high / before.interval("a").low > 2
    noisy = even | {"d": rounds(300, rng, moments, between=0.3)}
    after = faster.speeds(noisy)
    assert after.ratio("a", "b").high / after.ratio("a", "b").low < 1.3
    assert after.ratio("d", "b").high / after.ratio("d", "b").low > 1.5


def test_who_missed_a_slow_round_gains_nothing_by_it() -> None:
    rng = np.random.default_rng(0)
    moments = np.array([0.0, -0.5, 0.1])
    made = {key: rounds(1000, rng, moments, blocks=0.001) for key in "abc"}
    del made["a"][2]
    found = faster.speeds(made)
    assert found.ratio("a", "b").value == pytest.approx(1, rel=0.01)
    ratio = found.by_key["a"].per_s / found.by_key["b"].per_s
    assert found.ratio("a", "b").value == ratio, "what is shown is what decides"
    whole = {key: rounds(1000, rng, moments) for key in "ab"}
    assert faster.in_all_rounds(whole) == whole


def test_rounds_that_nothing_connects_are_compared_as_they_are() -> None:
    rng = np.random.default_rng(0)
    early = rounds(1000, rng, np.zeros(3), between=0.01)
    late = {n + 10: each for n, each in rounds(2000, rng, np.zeros(3), between=0.01).items()}
    found = faster.speeds({"early": early, "late": late}).ratio("late", "early")
    assert found.value == pytest.approx(2, rel=0.03)
    assert found.low < 2 < found.high


@pytest.mark.parametrize("few", [{}, {1: 20}, {1: 20, 2: 3}])
def test_without_two_rounds_of_four_blocks_nothing_is_sure(few: dict[int, int]) -> None:
    rng = np.random.default_rng(0)
    mine = {n: run(2000, rng, n=blocks) for n, blocks in few.items()}
    base = rounds(1000, rng, np.zeros(3))
    found = faster.speeds({"mine": mine, "base": base})
    assert ("mine" in found.by_key) == bool(few)
    if few:
        assert math.isnan(found.ratio("mine", "base").low)
        assert faster.relation(found.ratio("mine", "base")) == "undecided"


def test_what_ran_once_holds_up_the_answer_while_it_can_be_the_fastest() -> None:
    rng = np.random.default_rng(0)
    known = faster.speeds({k: rounds(v, rng, np.zeros(3)) for k, v in (("a", 1000), ("b", 700))})
    near = known.near_best(["a", "b"])
    assert near["a"].probability > 0.99
    assert (near["b"].behind, near["b"].probability < 0.01) == (True, True)
    once = Speeds(dict(known.by_key) | {"c": Speed.without_interval(900)})
    every = ["a", "b", "c"]
    assert all(math.isnan(found.probability) for found in once.near_best(every).values())
    found = once.near_best(every, ended={"c"})
    assert found["a"] == near["a"]
    assert found["c"].behind is False
    slow = Speeds(dict(known.by_key) | {"c": Speed.without_interval(400)})
    assert slow.near_best(every)["a"] == near["a"]
    assert Speeds({}).near_best([]) == {}
    assert NearBest().behind is False


def test_who_is_behind_after_three_rounds_stays_so_whatever_the_others_go_on_to_show() -> None:
    """It has no more rounds, so that the later, stricter looks are not its own."""
    rng = np.random.default_rng(0)
    made = {k: rounds(v, rng, np.zeros(3), between=0.01) for k, v in (("slow", 800), ("a", 1000))}
    made["b"] = rounds(995, rng, np.zeros(9), between=0.01)
    made["a"] = rounds(1000, rng, np.zeros(9), between=0.01)
    near = faster.speeds(made).near_best(["slow", "a", "b"])
    assert near["slow"].behind
    assert near["a"].probability > faster.sure_level(9)


def test_steps_that_are_all_alike_have_no_noise() -> None:
    alike = {n: RunBlocks(np.ones(20), np.full(20, 1e-3)) for n in (1, 2, 3)}
    found = faster.speeds(
        {"a": alike, "b": alike, "c": {n: b.slower_by(1.06) for n, b in alike.items()}}
    )
    assert found.ratio("a", "b") == pytest.approx((1, 1, 1), rel=1e-6)
    near = found.near_best(["a", "b", "c"])
    assert [near[key].probability for key in "abc"] == [1, 1, 0]
    assert [near[key].behind for key in "abc"] == [False, False, True]


def test_runs_that_were_made_apart_have_the_interval_of_the_two_sample_t_test() -> None:
    mine = np.log([90.0, 110.0, 104.0])
    base = np.log([50.0, 47.0])
    found = faster.of_runs(mine, base)
    expected = stats.ttest_ind(mine, base).confidence_interval(0.95)
    assert found.value == pytest.approx(math.exp(mine.mean() - base.mean()))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    alone = faster.of_runs(mine[:2], base[:1])
    assert alone.low < math.sqrt(90 * 110) / 50 < alone.high, "where SciPy's has no interval"


def test_single_runs_are_compared_by_their_own_intervals() -> None:
    ratio = faster.of_intervals(Interval(300, 290, 310), Interval(100, 95, 105))
    assert ratio.value == pytest.approx(3)
    assert 290 / 105 < ratio.low < ratio.high < 310 / 95
    assert math.isnan(faster.of_intervals(Interval(3, math.nan, math.nan), ratio).low)
    assert math.isnan(faster.of_intervals(Interval(3, 2, 4), Interval(0, 0, 0)).value)
