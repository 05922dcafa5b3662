"""Runs that were recorded elsewhere come into the store together."""

from __future__ import annotations

import numpy as np
import pytest

from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunQuery, RunStore
from vitprof.store.importing import VALUES_AT_ONCE, importing


def test_a_run_recorded_elsewhere_comes_in_whole_or_not_at_all(store: RunStore) -> None:
    values = {
        "name": "of a server",
        "status": "done",
        "created_utc": "2026-11-01T00:00:00Z",
        "config": RunConfig(strategy="hdf5").to_dict(),
        "summary": {"samples_per_s": 12.5},
        "verdict": {"kind": "input-bound"},
    }
    steps = {name: np.arange(3.0) for name in STEP_COLUMNS}
    samples = {"seq": np.arange(1.0)} | {name: np.zeros(1) for name in TELEMETRY_COLUMNS}
    with importing(store) as into:
        run_id = into.insert(values, steps=steps, telemetry=samples, tags=["server"])
    (row,) = store.list_runs(RunQuery(), limit=2)
    found = (row.id, row.name, row.strategy, row.samples_per_s, row.verdict_kind, row.tags)
    assert found == (run_id, "of a server", "hdf5", 12.5, "input-bound", ("server",))
    assert store.steps(run_id)["loss"].tolist() == [0.0, 1.0, 2.0]
    assert len(store.telemetry(run_id)["seq"]) == 1

    def one_good_one_bad() -> None:
        with importing(store) as into:
            into.insert(values, steps=steps, telemetry=samples)
            into.insert(values | {"status": None}, steps=steps, telemetry=samples)

    with pytest.raises(StoreError, match="failed"):
        one_good_one_bad()
    assert store.count_runs(RunQuery()) == 1


def test_runs_are_found_by_the_second_in_which_they_were_made(store: RunStore) -> None:
    mine = store.create_run(RunConfig())
    made = store.run(mine).created_utc
    others = {f"2020-01-01T00:00:00Z-{n}" for n in range(2 * VALUES_AT_ONCE)}
    with importing(store) as into:
        (found,) = into.recorded_in({made, *others})
        assert (found.id, found.created_utc, found.facts) == (mine, made, {})
        assert not list(into.recorded_in(others))
