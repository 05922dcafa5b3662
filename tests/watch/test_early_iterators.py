"""The iterator of the next epoch, which begins before an epoch ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.watch.epochs_script import BATCH, EPOCHS, SAMPLES
from tests.watch.watching import Host, Told
from vitprof.watch.early_iterators import EPOCH_IS_SET, NEVER_TAKEN, OTHER_NUMBERS
from vitprof.watch.trial import TELL

EPOCH_STEPS = SAMPLES // BATCH


class Trials:
    """Runs a function of the script unchanged, and with epochs that begin early."""

    def __init__(self, host: Host, tell: Path) -> None:
        self._scripts = host.running("tests.watch.epochs_script")
        self._tell = tell

    def unchanged(self, function: str) -> Told:
        return self._run(function, {})

    def early(self, function: str) -> Told:
        watched = self.unchanged(function).note("environment")[0]["watched"]
        wanted = {"place": watched["made_place"], "nth": None, "arguments": {}, "cache_bytes": None}
        return self._run(function, {**wanted, "across_epochs": True})

    def _run(self, function: str, wanted: dict[str, Any]) -> Told:
        env = {"VITPROF_WATCH_OVERRIDES": json.dumps(wanted), TELL: str(self._tell)}
        return self._scripts.run(function, env=env)

    def told(self) -> list[list[str]]:
        lines = self._tell.read_text().splitlines() if self._tell.exists() else []
        return [json.loads(line) for line in lines]


def losses(told: Told) -> list[str]:
    found: list[str] = json.loads(told.returned)["losses"]
    return found


def begun(told: Told) -> list[int]:
    """Returns how many iterators had begun as each epoch ended."""
    found: list[int] = json.loads(told.returned)["begun"]
    return found


@pytest.fixture
def trials(host: Host, tmp_path: Path) -> Trials:
    return Trials(host, tmp_path / "told")


def test_an_epoch_that_begins_early_has_the_very_same_batches(trials: Trials) -> None:
    first = trials.unchanged("train")
    early = trials.early("train")
    assert (early.status, early.complaint) == (0, "")
    assert early.note("environment")[0]["watched"]["made_changed"]
    assert losses(early) == losses(first)
    assert begun(first) == [1, 2, 3]
    assert begun(early) == [2, 3, 4], "before an epoch ends the next one has begun"
    assert trials.told() == []
    assert early.steps["epoch"].tolist() == np.repeat(range(EPOCHS), EPOCH_STEPS).tolist()


def test_validation_draws_numbers_and_so_the_order_changes(trials: Trials) -> None:
    first = losses(trials.unchanged("train_and_validate"))
    early = trials.early("train_and_validate")
    assert (early.status, early.complaint) == (0, "")
    found = losses(early)
    assert found[:EPOCH_STEPS] == first[:EPOCH_STEPS]
    assert found[EPOCH_STEPS:] != first[EPOCH_STEPS:]
    assert trials.told() == [["notice", OTHER_NUMBERS]]


def test_a_sampler_that_is_told_its_epoch_cannot_begin_before(trials: Trials) -> None:
    first = losses(trials.unchanged("train_by_epochs"))
    early = trials.early("train_by_epochs")
    assert (early.status, early.complaint) == (0, "")
    assert losses(early) == first, "nothing was taken of the wrong epoch"
    assert ["unused", EPOCH_IS_SET] in trials.told()
    assert ["unused", NEVER_TAKEN] not in trials.told()
