"""What two runs say of each other in a sentence, and how far their ratio can be trusted."""

import math
from dataclasses import replace

import pytest

from vitprof.analysis.arrays import Interval
from vitprof.analysis.compare.answer import LABELS, Basis, answer
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.compare.guard import Trust, trust_of, trusts_of
from vitprof.config import RunConfig


@pytest.mark.parametrize(
    ("ratio", "basis", "said"),
    [
        (
            Interval(3.33, 3.29, 3.37),
            "fair",
            "Run 12 is 3.33x faster than run 5 (95%: 3.29 to 3.37).",
        ),
        (
            Interval(0.5, 0.4, 0.625),
            "disturbed",
            "Run 5 is 2.00x faster than run 12 (95%: 1.60 to 2.50).",
        ),
        (
            Interval(1.01, 0.99, 1.03),
            "alternating, quiet",
            "Run 12 and run 5 are equally fast, within 5%: 1.010x (95%: 0.990 to 1.030).",
        ),
        (
            Interval(1.2, 0.9, 1.6),
            "alternating, busy",
            "Which is faster is undecided: run 12 was 1.20x as fast as run 5 (95%: 0.900 to 1.60).",
        ),
        (
            Interval(1.5, math.nan, math.nan),
            "fair",
            "Run 12 was 1.50x as fast as run 5; how far chance may change that is not known.",
        ),
        (
            Interval(25.0, 24.0, 26.0),
            "unlike",
            "Runs 5 and 12 are not alike, so neither speed is a gain over the other.",
        ),
    ],
)
def test_one_sentence_says_which_is_faster(ratio: Interval, basis: Basis, said: str) -> None:
    assert answer(5, 12, ratio, basis).sentence == said
    assert basis in LABELS


A_RUN = RunFacts(1, RunConfig(), environment={"hostname": "here", "cpu_count": 2})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (replace(A_RUN, id=2, config=RunConfig(strategy="memory")), "fair"),
        (replace(A_RUN, id=2, config=RunConfig(dataset="photos")), "unlike"),
        (replace(A_RUN, id=2, config=RunConfig(model="ti/16")), "unlike"),
        (replace(A_RUN, id=2, environment={"hostname": "there"}), "unlike"),
        (replace(A_RUN, id=2, facts={"n_beside": 1}), "disturbed"),
        (replace(A_RUN, id=2, others_cores=0.9), "disturbed"),
        (
            replace(A_RUN, id=2, environment={"hostname": "here", "cpu_count": 8}),
            "other conditions",
        ),
        (replace(A_RUN, id=2, facts={"n_beside": 1}, config=RunConfig(dataset="photos")), "unlike"),
    ],
)
def test_how_far_a_ratio_can_be_trusted(other: RunFacts, expected: Trust) -> None:
    assert trust_of([A_RUN, other]) == expected


def test_programs_that_were_busy_during_both_runs_disturb_too() -> None:
    """They differ in nothing then, but a ratio is no firmer for it."""
    busy = replace(A_RUN, others_cores=1.1)
    assert trust_of([busy, replace(busy, id=2)]) == "disturbed"


def test_one_unlike_run_takes_no_ratio_from_the_others() -> None:
    unlike = replace(A_RUN, id=3, config=RunConfig(dataset="photos"))
    every = [A_RUN, replace(A_RUN, id=2), unlike]
    assert trusts_of(every, 0) == ["fair", "fair", "unlike"]
    assert trusts_of(every, None) == ["fair"] * 3
