"""The times of transforms are summed for each loader, and described now and then."""

from __future__ import annotations

import itertools
import threading

import pytest

from vitprof.watch.events import Description
from vitprof.watch.patches import stages
from vitprof.watch.patches.stages import DESCRIBED_EVERY_S, UNSUMMED, StageSums

MADE = ((("Crop", "Flip"), 4, (4.0, 2.0)), (("Normalize",), 4, (1.0,)))
"""The entries of a batch with two Composes."""


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stages, "perf_counter", clock)
    return clock


@pytest.fixture
def sums(clock: Clock) -> StageSums:
    return StageSums(itertools.count(31))


def add(sums: StageSums, n: int, loader: int = 1) -> None:
    for _ in range(n):
        sums.add((loader, MADE, 4, None, -1))


def test_nothing_is_described_without_a_batch(sums: StageSums) -> None:
    assert sums.described(at_end=True) == []


def test_batches_of_the_warm_up_do_not_count(sums: StageSums) -> None:
    add(sums, UNSUMMED)
    (described,) = sums.described(at_end=True)
    assert described.facts == {"loader": 1, "samples": 0, "composes": []}


def test_the_sums_of_all_batches_so_far_are_described_under_one_number(sums: StageSums) -> None:
    add(sums, UNSUMMED + 2)
    composes = [[["Crop", "Flip"], 8, [8.0, 4.0]], [["Normalize"], 8, [2.0]]]
    facts = {"loader": 1, "samples": 8, "composes": composes}
    assert sums.described(at_end=True) == [Description(31, "stages", facts)]
    add(sums, 1)
    (described,) = sums.described(at_end=True)
    assert (described.number, described.facts["samples"]) == (31, 12)
    assert described.facts["composes"][0] == [["Crop", "Flip"], 12, [12.0, 6.0]]


def test_each_loader_has_its_own(sums: StageSums) -> None:
    add(sums, UNSUMMED + 1, loader=2)
    add(sums, UNSUMMED + 2, loader=1)
    described = sums.described(at_end=True)
    assert [each.facts["loader"] for each in described] == [1, 2]
    assert [each.facts["samples"] for each in described] == [8, 4]
    assert len({each.number for each in described}) == 2
    add(sums, 1, loader=2)
    (changed,) = sums.described(at_end=True)
    assert changed.facts["loader"] == 2, "what has not changed is not said again"


def test_loaders_that_are_made_anew_count_from_their_first_batch(sums: StageSums) -> None:
    """Epochs of three batches, each of a new loader: nothing was known of how they were made, so that a dataset that
    waits was told to do less work."""
    for loader in range(1, 6):
        add(sums, 3, loader=loader)
    samples = [each.facts["samples"] for each in sums.described(at_end=True)]
    assert samples == [0, 0, 12, 12, 12]


def test_times_of_samples_are_also_summed_by_worker(sums: StageSums) -> None:
    add(sums, UNSUMMED)
    for worker in (1.0, 0.0, 1.0, -1):  # -1: the loop made it
        sums.add((1, (), 4, ({40: 3, 62: 1}, ((9, 0.05, ""),)), worker))
    (described,) = sums.described(at_end=True)
    assert described.facts["buckets"] == [(40, 12), (62, 4)]
    of_workers = [[0, [(40, 3), (62, 1)]], [1, [(40, 6), (62, 2)]]]
    assert described.facts["of_workers"] == of_workers


def test_they_are_described_now_and_then(sums: StageSums, clock: Clock) -> None:
    add(sums, 9)
    assert sums.described(at_end=False)
    add(sums, 1)
    clock.now_s += DESCRIBED_EVERY_S - 1.0
    assert sums.described(at_end=False) == []
    clock.now_s += 1.0
    assert sums.described(at_end=False)
    add(sums, 1)
    assert sums.described(at_end=True), "whenever that is"


def test_a_fork_describes_nothing_of_its_parents(sums: StageSums) -> None:
    add(sums, 9)
    sums.forget()
    assert sums.described(at_end=True) == []


def test_batches_are_added_while_others_are_summed(sums: StageSums) -> None:
    n = 2000
    adding = threading.Thread(target=add, args=(sums, n))
    adding.start()
    found = list[Description]()
    while not found or found[-1].facts["samples"] < 4 * (n - UNSUMMED):
        found += sums.described(at_end=True)
    adding.join()
    assert found[-1].facts["composes"][1] == [["Normalize"], 4 * (n - UNSUMMED), [n - UNSUMMED]]
