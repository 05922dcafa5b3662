"""Ranks with a GPU each, over gloo: what is a rank's own of the device's time."""

from pathlib import Path

import pytest

from tests import ROOT, nullcuda
from tests.engine_fixtures import trained  # noqa: F401
from tests.jobs.test_ranks import ranks_with_buffers
from vitprof.store import RunStore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("cause", "slow"), [("compute", 1), ("between steps", 0)])
def test_the_straggler_is_named_by_its_cause(
    store: RunStore, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, slow: int
) -> None:
    for name, value in {
        **nullcuda.environment(shm, devices=2),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }.items():
        monkeypatch.setenv(name, value)
    ranks = ranks_with_buffers(store, tmp_path, cause, slow)
    assert (ranks["straggler"], ranks["cause"], ranks["waits_alone"]) == (slow, cause, False)
