"""Steps that are kept as they arrive: the same as those of the store, in memory or in a file, or none at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import numpy as np
import pytest

from tests.ui.dashboard import add_run
from vitprof.analysis.arrays import Series
from vitprof.jobs.finalise import settle
from vitprof.jobs.kept_steps import KeptSteps
from vitprof.recording.columns import STEP_COLUMNS, summary_to_dict
from vitprof.store import RunStore

N = 50


@pytest.fixture
def stored(store: RunStore) -> Series:
    return store.steps(add_run(store, n=N))


def matrices(steps: Series, at_once: int = 7) -> list[np.ndarray]:
    rows = np.column_stack([steps[name] for name in STEP_COLUMNS])
    return [rows[i : i + at_once] for i in range(0, len(rows), at_once)]


@pytest.mark.parametrize("in_memory", [1 << 20, 1000], ids=["in memory", "in a file"])
def test_they_are_those_of_the_store(stored: Series, in_memory: int) -> None:
    kept = KeptSteps(in_memory)
    parts = matrices(stored)
    kept.add(parts[:3])
    assert kept.read(N) is None, "not all are there yet"
    kept.add(parts[3:])
    for _ in range(2):
        found = kept.read(N)
        assert found is not None
        assert list(found) == list(stored)
        for name in stored:
            np.testing.assert_array_equal(found[name], stored[name])


def test_others_than_the_store_has_are_not_used(stored: Series) -> None:
    kept = KeptSteps()
    assert kept.read(1) is None
    kept.add(reversed(matrices(stored)))
    assert kept.read(N) is None, "not in order"


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file may become larger than 2 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_there_is_no_room_none_are_kept(stored: Series, no_room: None) -> None:
    kept = KeptSteps(1000)
    for _ in range(20):
        kept.add(matrices(stored))
    assert kept.read(20 * N) is None


@pytest.mark.parametrize("least", [0, 1], ids=["all", "one is missing"])
def test_a_run_is_summed_up_the_same(store: RunStore, least: int) -> None:
    run_id = add_run(store, n=N)
    kept = KeptSteps()
    kept.add([rows[least:] for rows in matrices(store.steps(run_id), N)])
    found, expected = settle(store, run_id, 90.0, 200.0, kept), settle(store, run_id, 90.0, 200.0)
    assert summary_to_dict(found.pop("summary")) == summary_to_dict(expected.pop("summary"))
    assert found == expected
