"""Transforms by their names, and the work of making batches, of the loaders that feed a training."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vitprof.watch.core.stages import stage_facts
from vitprof.watch.events import Description
from vitprof.watch.fetch_times import WORK

Compose = tuple[tuple[str, ...], int, list[float]]


def stages(loader: int, samples: int, *composes: Compose) -> Description:
    listed = [[list(names), calls, seconds] for names, calls, seconds in composes]
    facts: dict[str, Any] = {"loader": loader, "samples": samples, "composes": listed}
    return Description(100 + loader, "stages", facts)


def test_without_batches_nothing_is_known() -> None:
    assert stage_facts([Description(1, "loader", {})], [1]) == {}
    assert stage_facts([stages(1, 0)], [1]) == {}


def test_a_transform_has_its_seconds_for_each_sample() -> None:
    found = stage_facts([stages(1, 8, (("Crop", "Flip"), 8, [4.0, 2.0]))], [1])
    assert found == {
        "transforms": {
            "Crop": {"s_per_sample": 0.5, "calls": 8},
            "Flip": {"s_per_sample": 0.25, "calls": 8},
        }
    }


def test_transforms_of_one_name_are_numbered() -> None:
    composes = (
        (("Crop", "Normalize", "Normalize"), 4, [4.0, 2.0, 0.5]),
        (("Normalize",), 4, [1.0]),
    )
    found = stage_facts([stages(1, 4, *composes)], [1])
    assert list(found["transforms"]) == ["Crop", "Normalize", "Normalize (2)", "Normalize (3)"]
    assert found["transforms"]["Normalize (3)"]["s_per_sample"] == 0.25


def test_loaders_that_feed_the_training_are_taken_together_and_others_left_out() -> None:
    """As where each epoch has a loader of its own."""
    described = [
        stages(1, 4, (("Crop",), 4, [2.0])),
        stages(2, 12, (("Crop",), 12, [6.0])),
        stages(3, 4, (("Crop",), 4, [400.0])),
    ]
    found = stage_facts(described, {1, 2})
    assert found == {"transforms": {"Crop": {"s_per_sample": 0.5, "calls": 16}}}


def test_the_work_of_making_batches_is_no_transform() -> None:
    found = stage_facts([stages(1, 8, (WORK, 3, [0.3, 0.2, 0.01, 6.0]))], [1])
    assert found == {
        "making": {"made_s": 0.3, "cpu_s": 0.2, "queued_s": 0.01, "opened": 6.0, "batches": 3}
    }


def test_what_is_not_known_of_that_work_comes_as_null() -> None:
    """How long other threads waited for a core, which did a part of it: NaN has no form in JSON."""
    entries: list[Any] = [(WORK, 1, [0.3, 0.2, None, 6.0]), (WORK, 2, [0.6, 0.4, 0.01, 0.0])]
    found = stage_facts([stages(1, 8, *entries)], [1])["making"]
    assert math.isnan(found.pop("queued_s"))
    assert found == {
        "made_s": pytest.approx(0.9),
        "cpu_s": pytest.approx(0.6),
        "opened": 6.0,
        "batches": 3,
    }
