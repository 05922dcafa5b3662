"""What is put into a stage is compared with what is said of it, what recording costs, and every strategy's job."""

import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clock import Clock
from tests.engine_fixtures import small_home  # noqa: F401
from tests.series import made_steps
from vitprof.config import RunConfig, injection
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.measure.devices import open_device
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.selftest.gpu import job_cases
from vitprof.selftest.gpu.bench import SHORT_JOB, Bench, Recorded
from vitprof.selftest.gpu.driver import run_case
from vitprof.selftest.gpu.job_cases import STEPS, every_strategy, settings_for, wrong_steps

FETCH_MS, COMPUTE_MS = 3.0, 1.0
PARTS = {"read": 0.2, "decode": 0.3, "transform": 0.4, "collate": 0.1}
"""Of what fetching takes."""


class Derived(Recorded):
    """A job whose columns are given."""

    steps: dict[str, Any] = {}  # type: ignore[assignment]  # noqa: RUF012


class MadeUp(Bench):
    """Jobs whose steps are made: a fetch, a copy and a computation, one after another, and nothing beside them."""

    error_ms = 0.0
    """By how much a wait is reported longer than it was."""
    idle_ms = 0.0
    """By how much compute is reported longer than the device works."""
    blames = ""
    """A stage that gets whatever wait is put in."""
    ran: list[str]

    def spin(self, seconds: float) -> float:
        return seconds

    def run(self, **settings: Any) -> Recorded:
        settings.pop("trains")
        config = resolve(RunConfig(device="simulated:1,0", **SHORT_JOB | settings))
        stage, wait_s = injection(config.inject) if config.inject else ("", 0.0)
        self.ran.append(stage)
        wait_s += self.error_ms / 1e3 if stage else 0.0
        stage = self.blames or stage
        parts = {name: share * FETCH_MS / 1e3 for name, share in PARTS.items()}
        copy_s = 20e-6
        if stage == "transfer":
            copy_s += wait_s
        elif stage:
            parts[stage] += wait_s
        fetch_s = sum(parts.values())
        # what of fetching the device still works for; the copy waits for it
        n, hidden_s = 40, min(fetch_s, COMPUTE_MS / 1e3)
        made = made_steps(
            [fetch_s - hidden_s] * n, [(COMPUTE_MS + self.idle_ms) / 1e3] * n, h2d=copy_s, warmup=8
        )
        columns = {name: made[name].copy() for name in STEP_COLUMNS}
        columns["t_start_s"] -= hidden_s
        columns["data_wait_s"] += hidden_s
        columns["h2d_start_s"] = columns["compute_start_s"] - copy_s
        columns["host_s"] = np.full(n, copy_s)
        columns["launch_idle_s"] = np.zeros(n)
        for name, took_s in parts.items():
            columns[f"{name}_s"] = np.full(n, took_s)
        recorded = Derived(config, 0.0, 1.0)
        recorded.steps = columns
        return recorded


@pytest.fixture
def bench() -> MadeUp:
    now = Clock()
    made = MadeUp(None, clock=now, sleep=now.sleep)  # type: ignore[arg-type]
    made.ran = []
    return made


def test_what_is_put_in_is_found(bench: MadeUp) -> None:
    outcome = run_case("known idle", bench)
    assert outcome.status == "passed", outcome.wrong
    assert outcome.measured.startswith("11 of 11 waits right")
    assert len(bench.ran) == 11


@pytest.mark.parametrize(
    ("attribute", "value", "wrong"),
    [
        ("error_ms", 2.5, "20 ms in read: the size found was off by +2.50 ms, where 2.00 ms are"),
        ("blames", "decode", "20 ms in collate: the verdict blamed decoding, expected collating"),
        pytest.param("idle_ms", 0.8, "it reported an idle share of"),
    ],
)
def test_what_is_wrong_is_told_after_three_rounds(
    bench: MadeUp, attribute: str, value: Any, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("", "read", "decode", "collate")
    some = tuple(case for case in job_cases.IDLE_CASES if case.part in parts)
    monkeypatch.setattr(job_cases, "IDLE_CASES", some)
    setattr(bench, attribute, value)
    outcome = run_case("known idle", bench)
    assert outcome.status == "failed"
    assert wrong in outcome.wrong
    assert bench.ran.count("collate") == 2 * job_cases.ROUNDS
    right = {"error_ms": "no wait", "blames": "in decode:"}.get(attribute)
    assert right is None or right not in outcome.wrong


@pytest.mark.usefixtures("small_home")
@pytest.mark.measured
def test_a_real_job_waits_for_as_long_as_it_is_told() -> None:
    """Through the training loop, on a simulated device whose waits are those of the case."""
    bench = Bench(open_device("simulated:1,0", time.perf_counter))
    recorded = job_cases._spun(bench, {"inject": "read:2"})
    assert recorded.verdict().cause
    assert np.median(recorded.steps["compute_s"]) == pytest.approx(COMPUTE_MS / 1e3, rel=0.05)
    assert recorded.steps["read_s"].min() >= 0.002
    assert 0 < recorded.idle_frac < 1
    assert recorded.step_ms > 2


@pytest.mark.parametrize(
    ("on_s", "status", "rounds"),
    [
        ([1.001], "passed", 5),
        ([1.05], "failed", 5),
        ([1.0, 1.1, 1.1], "not run", job_cases.MOST_COST_ROUNDS),
    ],
)
def test_recording_cost(
    on_s: list[float], status: str, rounds: int, bench: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = itertools.cycle(on_s)
    monkeypatch.setattr(job_cases, "_recorded_s", lambda bench: next(recorded))
    monkeypatch.setattr(job_cases, "_plain_s", lambda bench: 1.0)
    outcome = run_case("own cost", bench)
    assert (outcome.status, len(outcome.figures["plain_step_ms"])) == (status, rounds)


@pytest.mark.usefixtures("small_home")
def test_both_loops_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, on a simulated device: it waits for each batch, so both take a step's time at least."""
    monkeypatch.setattr(job_cases, "COST_STEPS", 6)
    monkeypatch.setattr(job_cases, "COST_WARMUP_STEPS", 2)
    found = Bench(open_device("simulated:3,0", time.perf_counter))
    assert job_cases._recorded_s(found) >= 0.003
    assert job_cases._plain_s(found) >= 0.003


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_has_a_short_job_that_can_run(name: str) -> None:
    config = resolve(RunConfig(device="cuda:0", steps=STEPS, **settings_for(name)))
    assert config.workers in (None, 0, 2)
    assert config.slow_latency_ms in (None, 1.0)


def test_steps_are_checked() -> None:
    right = {
        name: np.full(STEPS, 1e-3)
        for name in ("step", "data_wait_s", "h2d_s", "compute_s", "step_s")
    }
    unknown, none = np.full(STEPS, math.nan), np.zeros(STEPS)
    assert (wrong_steps(right), wrong_steps(right | {"step": np.arange(3)})) == (
        "",
        "it has 3 steps",
    )
    assert (
        wrong_steps(right | {"h2d_s": unknown}) == "h2d_s has values that are negative or not known"
    )
    assert wrong_steps(right | {"compute_s": none}) == "a step without compute"


@pytest.mark.usefixtures("small_home")
def test_each_that_can_run_is_run_and_what_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str) -> dict[str, Any]:
        return {"strategy": name, "batch_size": 8} | (
            {"replay": "nowhere"} if name == "device" else {}
        )

    monkeypatch.setattr(job_cases, "IN_ORDER", ("memory", "device", "dali"))
    monkeypatch.setattr(
        job_cases, "settings_for", lambda name: {"dataset": "digits"} | refused(name)
    )
    monkeypatch.setattr(
        job_cases, "why_unavailable", lambda plan, info: "no DALI" * (plan.name == "dali")
    )
    bench = Bench(open_device("simulated:1,0", time.perf_counter), directory=tmp_path)
    outcome = every_strategy(bench)
    assert outcome.measured == "1 of 3 trained 20 steps; cannot run here: dali (no DALI)"
    assert outcome.wrong.startswith("device: replay")
    assert outcome.figures["passed"] == ["memory"]


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize(("hung_s", "status"), [(200.0, "not run"), (40.0, "failed")])
def test_what_is_not_reached_in_time_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung_s: float, status: str
) -> None:
    """The time ends while the first one runs. What took most of it has failed."""
    assert job_cases.IN_ORDER[:3] == ["device", "prefetch", "dali"]
    assert sorted(job_cases.IN_ORDER) == sorted(STRATEGIES)
    monkeypatch.setattr(job_cases, "IN_ORDER", ("memory", "device"))
    monkeypatch.setattr(
        job_cases, "settings_for", lambda name: {"dataset": "digits", "strategy": name}
    )
    monkeypatch.setattr(job_cases, "HUNG_S", hung_s)
    times = itertools.chain([0.0, 0.0, 0.0], itertools.repeat(100.0))
    device = open_device("simulated:1,0", time.perf_counter)
    outcome = every_strategy(Bench(device, clock=lambda: next(times), directory=tmp_path))
    assert outcome.status == status
    assert outcome.figures["not_reached"] == ["memory", "device"][status == "failed" :]
    assert ("memory: stopped" in outcome.wrong) is (status == "failed")
