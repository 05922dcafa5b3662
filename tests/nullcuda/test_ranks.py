"""Ranks with a GPU each, over gloo: what is a rank's own of the device's time."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, nullcuda
from tests.engine_fixtures import trained  # noqa: F401
from tests.jobs.test_rank_processes import ranks_with_buffers
from vitprof.store import RunStore


@pytest.mark.measured
@pytest.mark.parametrize(("cause", "slow"), [("compute", 1), ("between steps", 0)])
def test_the_straggler_is_named_by_its_cause(
    store: RunStore,
    shm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cause: str,
    slow: int,
) -> None:
    for name, value in {
        **nullcuda.environment(shm, devices=2),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }.items():
        monkeypatch.setenv(name, value)
    ranks = ranks_with_buffers(store, tmp_path, cause, slow)
    assert (ranks["straggler"], ranks["cause"], ranks["waits_alone"]) == (slow, cause, False)


CLOCKS = """
import threading, time
from vitprof.telemetry.nvml import Nvml
from vitprof.telemetry.rank_clocks import RankClocks

with Nvml() as nvml:
    uuids = [gpu.uuid for gpu in nvml.gpus()]
sent, came = [], threading.Event()
clocks = RankClocks(lambda mhz: (sent.append(mhz), came.set()), period_s=0.01)
clocks.add(0, uuids[0])
assert threading.active_count() == 1, "one GPU has none to be compared with"
clocks.add(3, uuids[1])
clocks.add(4, "GPU-that-is-not-there")
assert came.wait(60)
clocks.close()
assert threading.active_count() == 1
print(sent[0])
"""


def test_the_clock_of_each_rank_s_gpu_is_sampled(shm: Path) -> None:
    env = {**os.environ, **nullcuda.environment(shm, devices=2), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CLOCKS], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    clocks = ast.literal_eval(done.stdout)
    assert set(clocks) == {"0", "3"}
    assert all(100 < mhz < 10_000 for mhz in clocks.values())
