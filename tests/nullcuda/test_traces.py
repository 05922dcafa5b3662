"""A trace of a script on a GPU, beside what the device itself knows of its work, and beside watching."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.watch_matrix import BUSY, STARVED, run
from tests import nullcuda
from tests.nullcuda import N_BATCHES
from tests.shares import check_steps
from tests.watch.watching import Host
from vitprof.analysis import thresholds
from vitprof.analysis.arrays import Series
from vitprof.jobs.trace_runs import run_columns
from vitprof.traces.reading import ReadTrace, read_trace

pytestmark = pytest.mark.measured
POINTS = 0.03
"""The most that a share of the time may be off."""
FIRST = N_BATCHES // 4
"""The batch from which on the script says what the device knows."""


@pytest.fixture(scope="module")
def profiled(shm: Path) -> Iterator[Host]:
    host = Host("tests.nullcuda.profiled", nullcuda.environment(shm))
    yield host
    host.close()


class Traced:
    """A trace, and what the device knows of the same time."""

    def __init__(self, profiled: Host, path: Path, script: str, **how: Any) -> None:
        done = profiled.ok(
            "traced", watched=False, listen=False, script=script, path=str(path), **how
        )
        self.own = json.loads(done.returned)
        self.read: ReadTrace = read_trace(path)
        self.steps: Series = self.read.steps
        check_steps(self.steps)

    def frac(self, name: str) -> float:
        """A column's share of the time that the script speaks of: up to its last batch."""
        number = self.steps["step"]
        kept = (number >= FIRST) & (number < len(number) - 1)
        return float(self.steps[name][kept].sum() / self.steps["step_s"][kept].sum())

    def truth(self, name: str) -> float:
        return float(self.own[name] / (self.own["until_s"] - self.own["since_s"]))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("plain", STARVED),
    ("plain", BUSY),
    ("plain", {**STARVED, "item": True}),
    ("plain", {**BUSY, "item": True}),
    ("by_accelerate", STARVED),
    ("by_timm", STARVED),
    ("by_transformers", STARVED),
    ("by_lightning", STARVED),
]


@pytest.mark.parametrize(("script", "how"), CASES, ids=repr)
def test_a_trace_says_what_the_device_knows(
    profiled: Host, host: Host, tmp_path: Path, script: str, how: dict[str, Any]
) -> None:
    traced = Traced(profiled, tmp_path / "trace.json", script, **how)
    assert len(traced.steps["step"]) >= N_BATCHES - 2
    waited = traced.frac("exposed_wait_s")
    assert waited == pytest.approx(traced.truth("exposed_wait_s"), abs=POINTS)
    assert waited == pytest.approx(run(host, script, **how).frac("exposed_wait_s"), abs=POINTS)
    idle_frac = run_columns(traced.read, "trace")["verdict"]["idle_frac"]
    assert (idle_frac >= thresholds.INPUT_BOUND_FRAC) == (how["wait_s"] > 0)


def test_launches_that_take_longer_than_their_kernels(profiled: Host, tmp_path: Path) -> None:
    """1 ms of kernels in 8 ms of launches."""
    traced = Traced(profiled, tmp_path / "trace.json", "launch_bound")
    assert run_columns(traced.read, "trace")["verdict"]["kind"] == "launch-bound"
    assert traced.frac("launch_idle_s") > 0.6


def test_work_after_the_step_is_outside_of_it(profiled: Host, tmp_path: Path) -> None:
    """12 ms of logging after 4 ms of work."""
    how = {"host_s": 0.012, "device_s": 0.0}
    traced = Traced(profiled, tmp_path / "trace.json", "works_after", **how)
    assert np.nanmedian(traced.steps["outside_s"]) > 0.0114
    assert run_columns(traced.read, "trace")["verdict"]["kind"] == "not input-bound"
