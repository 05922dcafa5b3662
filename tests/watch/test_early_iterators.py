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


@pytest.fixture
def trials(host: Host, tmp_path: Path) -> Trials:
    return Trials(host, tmp_path / "told")


def test_an_epoch_that_begins_early_has_the_very_same_batches(trials: Trials) -> None:
    first = trials.unchanged("train")
    early = trials.early("train")
    assert (early.status, early.complaint) == (0, "")
    assert early.note("environment")[0]["watched"]["made_changed"]
    assert json.loads(early.returned) == json.loads(first.returned)
    assert trials.told() == []
    steps = early.steps
    assert steps["epoch"].tolist() == np.repeat(range(EPOCHS), EPOCH_STEPS).tolist()
    # made before the loop asked for it: the last batches of the epoch before were not used yet
    begun_s = steps["made_start_s"][EPOCH_STEPS::EPOCH_STEPS]
    before_s = steps["t_start_s"][EPOCH_STEPS - 1 : -1 : EPOCH_STEPS]
    asked_s = steps["t_start_s"][EPOCH_STEPS::EPOCH_STEPS]
    assert (begun_s < asked_s).all()
    assert len(before_s) == len(begun_s) == EPOCHS - 1


def test_validation_draws_numbers_and_so_the_order_changes(trials: Trials) -> None:
    first = json.loads(trials.unchanged("train_and_validate").returned)
    early = trials.early("train_and_validate")
    assert (early.status, early.complaint) == (0, "")
    losses = json.loads(early.returned)
    assert losses[:EPOCH_STEPS] == first[:EPOCH_STEPS]
    assert losses[EPOCH_STEPS:] != first[EPOCH_STEPS:]
    assert trials.told() == [["notice", OTHER_NUMBERS]]


def test_a_sampler_that_is_told_its_epoch_cannot_begin_before(trials: Trials) -> None:
    first = json.loads(trials.unchanged("train_by_epochs").returned)
    early = trials.early("train_by_epochs")
    assert (early.status, early.complaint) == (0, "")
    assert json.loads(early.returned) == first, "nothing was taken of the wrong epoch"
    assert ["unused", EPOCH_IS_SET] in trials.told()
    assert ["unused", NEVER_TAKEN] not in trials.told()
