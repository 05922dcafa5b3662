"""The rule for "faster while other programs ran": which rounds count, and how careful its bound is."""

import math
from dataclasses import replace

import pytest

from vitprof.analysis.faster_while_busy import BusyRun, Pair, at_least, at_least_words

Runs = dict[int, BusyRun]


def runs(*per_s: float, others: float = 1.0, waited: float = math.nan) -> Runs:
    """Runs of rounds 1, 2, ... at these speeds, beside programs that took `others` of two cores."""
    made = [BusyRun(speed, 100, others, 2.0, waited=waited) for speed in per_s]
    return dict(enumerate(made, 1))


FAST = runs(3000, 3100, 2900, 3050, 3000, 2950)
SLOW = runs(1000, 1010, 990, 1000, 1020, 980)


def test_far_faster_in_every_round_is_said_with_a_bound_below_every_ratio() -> None:
    found = at_least(FAST, SLOW)
    assert found is not None
    smallest = min(FAST[n].per_s / SLOW[n].per_s for n in FAST)
    assert 2.7 < found.times <= smallest
    assert (found.n_rounds, found.others_cores, found.cores) == (6, 1.0, 2.0)
    assert found.words == "at least 2.9x"
    assert found.others_words == "while other programs used 1.0 of 2 cores"


def test_the_slower_one_is_never_faster() -> None:
    assert at_least(SLOW, FAST) is None
    assert at_least(SLOW, SLOW) is None


def test_one_round_in_which_it_was_no_faster_ends_it() -> None:
    assert at_least(FAST | {3: replace(FAST[3], per_s=1000.0)}, SLOW) is None


def test_three_rounds_are_too_few() -> None:
    assert at_least({n: FAST[n] for n in (1, 2, 3)}, SLOW) is None
    assert at_least({n: FAST[n] for n in (1, 2, 3, 4)}, SLOW) is not None


def test_scattered_rounds_have_a_lower_bound_than_the_smallest_ratio() -> None:
    scattered = runs(2000, 6000, 2500, 9000)
    found = at_least(scattered, runs(1000, 1000, 1000, 1000))
    assert found is None or found.times < 2.0
    steady = at_least(runs(2000, 2010, 2020, 2005), runs(1000, 1000, 1000, 1000))
    assert steady is not None
    assert steady.times == pytest.approx(1.99, abs=0.02)


def test_the_time_that_the_slower_one_waited_for_a_core_counts_against_the_ratio() -> None:
    waited = runs(*(run.per_s for run in SLOW.values()), others=1.5, waited=0.2)
    assert Pair(FAST[1], waited[1]).times == pytest.approx(3.0 * 0.8)
    # where it cannot have lost more by what others left it less, that is all
    little = runs(*(run.per_s for run in SLOW.values()), others=1.1, waited=0.5)
    assert Pair(FAST[1], little[1]).times == pytest.approx(3.0 * 0.9 / 1.0)
    # several threads that waited all the time say nothing of the time that was lost
    several = runs(*(run.per_s for run in SLOW.values()), others=1.1, waited=1.4)
    assert Pair(FAST[1], several[1]).times == pytest.approx(3.0 * 0.9 / 1.0)


def test_what_others_took_more_from_the_slower_one_counts_where_waits_are_not_known() -> None:
    beside_more = runs(*(run.per_s for run in SLOW.values()), others=1.1)
    beside_less = runs(*(run.per_s for run in FAST.values()), others=0.5)
    pair = Pair(beside_less[1], beside_more[1])
    assert pair.times == pytest.approx(3.0 * 0.9 / 1.5)
    found = at_least(beside_less, beside_more)
    assert found is not None
    assert found.times < 1.8
    assert found.others_cores == pytest.approx(0.8)
    # what others took more from the faster one is no merit of it
    assert Pair(beside_more[1], beside_less[1]).times == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("of_fast", "of_slow", "alike"),
    [(1.0, 1.0, True), (0.0, 0.2, True), (0.4, 1.2, True), (0.0, 1.2, False), (1.2, 0.2, False)],
)
def test_other_programs_ran_in_both_runs_of_a_pair(
    of_fast: float, of_slow: float, alike: bool
) -> None:
    pair = Pair(BusyRun(3000, 100, of_fast, 2.0), BusyRun(1000, 100, of_slow, 2.0))
    assert pair.is_alike is alike


def test_a_program_that_ran_in_the_turns_of_one_only_makes_none_faster() -> None:
    assert at_least(runs(3000, 3000, 3000, 3000, others=0.0), runs(1000, 1000, 1000, 1000)) is None


def test_next_to_no_other_programs_is_a_case_for_the_firm_rule() -> None:
    quiet = {n: replace(run, others_cores=0.05) for n, run in FAST.items()}
    assert at_least(quiet, {n: replace(run, others_cores=0.1) for n, run in SLOW.items()}) is None


@pytest.mark.parametrize(
    "unknown", [{"others_cores": math.nan}, {"cores": math.nan}, {"n_steps": 3}]
)
def test_runs_of_which_too_little_is_known_do_not_count(unknown: dict[str, float]) -> None:
    changed = {n: replace(run, **unknown) for n, run in SLOW.items()}  # type: ignore[arg-type]
    assert at_least(FAST, changed) is None


def test_few_steps_say_nothing() -> None:
    few = {n: replace(run, n_steps=4) for n, run in list(SLOW.items())[:4]}
    assert at_least(FAST, few) is None, "16 steps are below those of an interval"


def test_runs_on_two_machines_are_no_pair() -> None:
    elsewhere = {n: replace(run, node="b") for n, run in SLOW.items()}
    assert at_least({n: replace(run, node="a") for n, run in FAST.items()}, elsewhere) is None


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.799, "at least 1.79x"),
        (1.25, "at least 1.25x"),
        (3.199, "at least 3.1x"),
        (3.1, "at least 3.1x"),
        (12.9, "at least 12x"),
    ],
)
def test_a_bound_is_rounded_down(times: float, words: str) -> None:
    assert at_least_words(times) == words
