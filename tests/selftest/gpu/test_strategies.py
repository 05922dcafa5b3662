"""Every strategy's job and its check, on the simulated device."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine_fixtures import small_home  # noqa: F401
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.measure.devices import open_device
from vitprof.selftest.gpu import strategies
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.strategies import STEPS, every_strategy, settings_for, wrong_steps


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_has_a_short_job_that_can_run(name: str) -> None:
    config = resolve(RunConfig(device="cuda:0", steps=STEPS, **settings_for(name)))
    assert config.workers in (None, 0, 2)
    assert config.slow_latency_ms in (None, 1.0)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"step": np.arange(3)}, "it has 3 steps"),
        ({"h2d_s": np.full(STEPS, math.nan)}, "h2d_s has values that are negative or not known"),
        ({"compute_s": np.zeros(STEPS)}, "a step without compute"),
    ],
)
def test_steps_are_checked(change: dict[str, Any], wrong: str) -> None:
    columns = ("step", "data_wait_s", "h2d_s", "compute_s", "step_s")
    assert wrong_steps({name: np.full(STEPS, 1e-3) for name in columns} | change) == wrong


@pytest.mark.slow
@pytest.mark.usefixtures("small_home")
def test_each_that_can_run_is_run_and_what_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> dict[str, Any]:
        return {"strategy": name, "batch_size": 8} | ({"replay": "nowhere"} if name == "device" else {})

    monkeypatch.setattr(strategies, "STRATEGIES", ("memory", "device", "dali"))
    monkeypatch.setattr(strategies, "settings_for", lambda name: {"dataset": "digits"} | refused(name))
    monkeypatch.setattr(strategies, "why_unavailable", lambda plan, info: "no DALI" * (plan.name == "dali"))
    bench = Bench(open_device("simulated:1,0", time.perf_counter), directory=tmp_path)
    outcome = every_strategy(bench)
    assert outcome.measured == "1 of 3 trained 20 steps; cannot run here: dali (no DALI)"
    assert outcome.wrong.startswith("device: replay")
    assert outcome.figures["passed"] == ["memory"]
