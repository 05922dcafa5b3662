"""The overhead benchmark: its arithmetic, and a tiny round of every tool that is here. No ratio is judged."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import overhead, overhead_tools
from benchmarks.overhead_cases import CASES, USUAL, Case, steps_of
from tests.engine_fixtures import small_home  # noqa: F401

QUICK = Case("quick", "quick", "simulated:0.1,0", 64, 4, 1)
ON_CPU = Case("on-cpu", "on cpu", "cpu", 16, 3, 1)


def test_steps_rounds_and_cases() -> None:
    starts = [[0.0, 1.0, 3.0], [10.0, 14.0, 19.0]]
    assert (steps_of(starts, 0), steps_of(starts, 1)) == ([1, 2, 4, 5], [2, 4, 5])
    assert (steps_of(starts, 4), steps_of([[1.0], []], 0)) == ([5], [])
    bare, row = overhead.Row("quick", "bare"), overhead.Row("quick", "vitprof")
    for number, ms in enumerate([1.0, 2.0, 4.0, 5.0]):
        bare.add(number, np.full(3, ms))
    for number, ms in ((0, 1.1), (1, 2.4), (2, 4.0)):
        row.add(number, np.full(3, ms))
    value, low, high = row.times(bare)
    assert value == pytest.approx(1.1)
    assert 1.0 <= low <= value <= high <= 1.2
    assert math.isnan(overhead.over_rounds(np.array([1.0, 2.0])).low)
    assert math.isnan(overhead.over_rounds(np.array([])).value)
    assert set(USUAL) < {case.name for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("mine", "peer", "bare_ms", "told"),
    [
        (1.005, 1.05, 2.0, "<= 1.01: met; below gpuprof"),
        (1.02, 1.01, 2.0, "<= 1.01: MISSED; NOT below gpuprof"),
        (1.02, 1.05, 1.0, "below gpuprof"),  # nothing is asked of shorter steps
    ],
)
def test_the_gate_is_on_the_median(mine: float, peer: float, bare_ms: float, told: str) -> None:
    rows = {
        ("quick", tool): overhead.Row("quick", tool)
        for tool in ("bare", "vitprof", "traceml", "gpuprof")
    }
    for tool, times in (("bare", 1.0), ("vitprof", mine), ("gpuprof", peer)):
        rows["quick", tool].add(0, np.array([bare_ms, bare_ms, 3.0]) * times)
    assert overhead.gate(rows["quick", "vitprof"], rows) == told
    assert overhead.gate(rows["quick", "bare"], rows) == ""


@pytest.mark.usefixtures("small_home")
def test_the_plain_loop_and_vitprof_run_the_same_job(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for tool in ("bare", "vitprof", "torch-cycles", "torch-always"):
        folder = tmp_path / tool
        folder.mkdir()
        found[tool] = overhead_tools.run_cases(tool, [QUICK, ON_CPU], folder, 1.0)
    for tool, cases in found.items():
        for case in (QUICK, ON_CPU):
            assert len(cases[case.name]["steps_s"]) == case.steps, tool
            assert min(cases[case.name]["steps_s"]) > 0, tool
        assert cases["on-cpu"]["loss"] == found["bare"]["on-cpu"]["loss"], tool
        assert cases["quick"]["loss"] is None, tool
    assert found["vitprof"]["on-cpu"]["recorded"] == ON_CPU.steps + ON_CPU.warmup_steps + 1
    assert (
        found["torch-cycles"]["on-cpu"]["recorded"] == 3
    )  # one cycle of five steps, in three of which it records
