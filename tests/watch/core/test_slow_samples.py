"""Samples that are slow beside the median of all are listed with the steps in which they came."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vitprof.watch.core.slow_samples import MOST_KEPT, MOST_LISTED, MOST_TIMES, SlowSamples
from vitprof.watch.events import Description
from vitprof.watch.time_sketch import bucket_of, quantile_s

LOADER = 7
MEDIAN_S = quantile_s({bucket_of(0.001): 1}, 0.5)


def step(*slow: tuple[int, float]) -> Any:
    return SimpleNamespace(fetches=[SimpleNamespace(slow_samples=slow)])


def stages(n: int = 1000, files: Any = (), loader: int = LOADER) -> Description:
    facts = {"loader": loader, "buckets": [[bucket_of(0.001), n]], "files": list(files)}
    return Description(31, "stages", facts)


def facts_of(samples: SlowSamples, *described: Description) -> Any:
    return samples.facts(described, {LOADER}, finished=True).get("slow_samples")


def test_nothing_is_said_where_no_sample_was_timed() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 0.5)))
    assert facts_of(samples) is None
    assert facts_of(samples, Description(31, "stages", {"loader": LOADER})) is None
    assert facts_of(samples, stages(loader=LOADER + 1)) is None


def test_a_slow_sample_has_its_steps_and_its_file() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 0.5), (8, 0.3)))
    samples.add(9, step((5, 0.7)))
    assert facts_of(samples, stages(files=[[5, "/img/5.jpg", 24]])) == {
        "timed": 1000,
        "median_s": MEDIAN_S,
        "p99_s": MEDIAN_S,
        "listed": [
            {
                "index": 5,
                "times": 2,
                "total_s": 1.2,
                "longest_s": [0.7, 0.5],
                "steps": [9, 6],
                "file": "/img/5.jpg",
                "file_bytes": 24,
            },
            {
                "index": 8,
                "times": 1,
                "total_s": 0.3,
                "longest_s": [0.3],
                "steps": [6],
                "file": "",
                "file_bytes": None,
            },
        ],
    }


def test_what_only_seemed_slow_in_a_worker_is_not_listed() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 3.9 * MEDIAN_S), (6, 4.1 * MEDIAN_S)))
    assert [one["index"] for one in facts_of(samples, stages())["listed"]] == [6]


def test_the_fact_stays_as_it_is_until_the_loader_is_described_again() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 0.5)))
    first = samples.facts([stages()], {LOADER}, finished=False)
    samples.add(7, step((6, 0.6)))
    assert samples.facts([stages()], {LOADER}, finished=False) is first
    again = samples.facts([stages(n=2000)], {LOADER}, finished=False)
    assert [one["index"] for one in again["slow_samples"]["listed"]] == [6, 5]


def test_any_number_of_slow_samples_is_bounded() -> None:
    samples = SlowSamples()
    for number in range(3 * MOST_KEPT):
        samples.add(number, step((number, 0.1 + number / 1e4)))
        samples.add(number, step((10**6, 0.2)))
    listed = facts_of(samples, stages())["listed"]
    assert len(listed) == MOST_LISTED
    assert listed[0]["index"] == 10**6
    assert listed[0]["times"] == 3 * MOST_KEPT
    assert len(listed[0]["steps"]) == MOST_TIMES
    assert listed[1]["index"] == 3 * MOST_KEPT - 1
