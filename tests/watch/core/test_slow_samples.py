"""Samples that are slow beside the median of all are listed with the steps in which they came."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vitprof.recording import codec, recording
from vitprof.watch.core.slow_samples import (
    MOST_INDICES,
    MOST_KEPT,
    MOST_LISTED,
    MOST_TIMES,
    SlowSamples,
)
from vitprof.watch.events import Description
from vitprof.watch.time_sketch import bucket_of, middle_s, quantile_s

LOADER = 7
MEDIAN_S = quantile_s({bucket_of(0.001): 1}, 0.5)


def step(*slow: tuple[int, float]) -> Any:
    return SimpleNamespace(fetches=[SimpleNamespace(slow_samples=slow)])


def stages(n: int = 1000, files: Any = (), loader: int = LOADER, slow: int = 0) -> Description:
    buckets = [[bucket_of(0.001), n]]
    if slow:
        buckets.append([bucket_of(0.5), slow])
    facts = {"loader": loader, "buckets": buckets, "files": list(files)}
    return Description(31, "stages", facts)


def facts_of(samples: SlowSamples, *described: Description) -> Any:
    return samples.facts(described, {LOADER}, finished=True).get("slow_samples")


def test_nothing_is_said_where_no_sample_was_timed() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 0.5)))
    assert facts_of(samples) is None
    assert facts_of(samples, Description(31, "stages", {"loader": LOADER})) is None
    assert facts_of(samples, stages(loader=LOADER + 1)) is None


@pytest.mark.filterwarnings("error")
def test_they_are_written_as_json_without_a_warning() -> None:
    """Pydantic warned of each bucket, on the standard error of `vitprof watch --json`."""
    samples = SlowSamples()
    samples.add(6, step((5, 0.5), (8, 0.3)))
    told = facts_of(samples, stages(n=997, slow=3))
    assert codec.to_plain(told, recording.SlowSamples)["sketch"] == told["sketch"]


def test_a_slow_sample_has_its_steps_and_its_file() -> None:
    samples = SlowSamples()
    samples.add(6, step((5, 0.5), (8, 0.3)))
    samples.add(9, step((5, 0.7)))
    assert facts_of(samples, stages(n=997, files=[[5, "/img/5.jpg", 24]], slow=3)) == {
        "timed": 1000,
        "median_s": MEDIAN_S,
        "p99_s": MEDIAN_S,
        "indices": [5, 8],
        "indices_times": [2, 1],
        "indices_longest_s": [0.7, 0.3],
        "sketch": [[MEDIAN_S, 997], [middle_s(bucket_of(0.5)), 3]],
        "workers": [],
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
    fact = facts_of(samples, stages())
    listed = fact["listed"]
    assert len(listed) == MOST_LISTED
    assert len(fact["indices"]) == MOST_INDICES
    assert set(fact["indices"]) > {one["index"] for one in listed}
    assert listed[0]["index"] == 10**6
    assert listed[0]["times"] == 3 * MOST_KEPT
    assert len(listed[0]["steps"]) == MOST_TIMES
    assert listed[1]["index"] == 3 * MOST_KEPT - 1


def test_the_median_of_each_worker_is_known_between_buckets() -> None:
    samples = SlowSamples()
    at = bucket_of(0.001)
    of_workers = [[0, [[at, 60], [at + 1, 40]]], [1, [[at, 40], [at + 1, 60]]]]
    facts = {"loader": LOADER, "buckets": [[at, 100], [at + 1, 100]], "of_workers": of_workers}
    fact = facts_of(samples, Description(31, "stages", facts))
    one, other = fact["workers"]
    assert (one["worker"], one["timed"], other["worker"]) == (0, 100, 1)
    assert 1 < other["median_s"] / one["median_s"] < 1.08, "half a bucket would be 1.19"
