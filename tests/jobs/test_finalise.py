"""What is kept of a run that has ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.store.other_versions import rewrite
from tests.ui.dashboard import add_run
from vitprof.analysis.timing import gaps, summary, utilisation
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.availability import can_run
from vitprof.jobs import finalise
from vitprof.jobs.finalise import OPEN_S, settle, settle_interrupted, spark
from vitprof.recording.columns import summary_to_dict
from vitprof.store import RunQuery, RunStore


def test_gaps_are_worked_out_once(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any) -> gaps.Gaps:
        calls.append(args)
        return found(*args)

    found = gaps.find_gaps
    for module in (gaps, utilisation, summary):
        monkeypatch.setattr(module, "find_gaps", counted)
    run_id = add_run(store)
    assert settle(store, run_id, 90.0, 200.0)["summary"].n_steps == 40
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 1, 7, 40])
@pytest.mark.parametrize("loader_only", [False, True])
def test_the_figures_are_those_that_each_part_finds_alone(store: RunStore, n: int, loader_only: bool) -> None:
    run_id = add_run(store, n=n, loader_only=loader_only)
    run, steps, telemetry = store.run(run_id), store.steps(run_id), store.telemetry(run_id)
    found = settle(store, run_id, 90.0, 200.0)
    alone = summary.summarise(run.config, steps, telemetry, run.phases, {}, t_origin_s=90.0, t_end_s=200.0)
    assert summary_to_dict(found["summary"]) == summary_to_dict(alone)
    assert found["verdict"] == judge(run.config, steps, run.phases, telemetry, {}, possible=can_run).to_dict()
    assert found["spark"] == spark(steps, run.phases)


def test_a_run_that_cannot_be_read_stops_no_program_from_opening_the_store(store: RunStore) -> None:
    """A config that an older version took, such as a warm-up of 10^12 steps."""
    bad, good = (add_run(store, status="running") for _ in range(2))
    for run_id in (bad, good):
        store.update_run(run_id, t_origin_s=90.0, owner_started=1.0, verdict=None)
    rewrite(store, bad, RunConfig().to_dict() | {"warmup_steps": 10**12})
    settle_interrupted(store)
    assert {r.id: r.status for r in store.list_runs(RunQuery(), limit=5)} == dict.fromkeys((bad, good), "interrupted")
    assert store.run(good).verdict is not None


def breaks(*_: Any, **__: Any) -> Any:
    raise ValueError("a defect\nof ours")


def test_a_run_that_cannot_be_judged_says_so_and_keeps_no_other_from_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = (add_run(store, status="running", name=name) for name in ("bad", "good"))
    for run_id in (bad, good):
        store.update_run(run_id, t_origin_s=90.0, owner_started=1.0, summary=None, notices=["told before"])
    judges = {"bad": breaks, "good": judge}
    monkeypatch.setattr(finalise, "judge", lambda config, *args, **more: judges[config.name](config, *args, **more))
    settle_interrupted(store)
    run = store.run(bad)
    assert (run.status, run.summary, run.verdict) == ("interrupted", None, None)
    said = "this run could not be judged: ValueError: a defect; its steps and telemetry are kept and can be exported"
    assert run.notices == ("told before", said)
    assert "Traceback" in capsys.readouterr().err
    other = store.run(good)
    assert other.summary is not None
    assert other.verdict is not None
    assert other.notices == ("told before",)


def test_many_runs_that_cannot_be_judged_take_no_longer_than_a_minute(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        store.update_run(add_run(store, n=2, status="running"), owner_started=1.0, summary=None)
    clock = itertools.count(0.0, OPEN_S / 2 - 1)
    settled = {"verdict": {"kind": "inconclusive", "sentence": "", "simulated": False}}
    monkeypatch.setattr(finalise, "settle", lambda *_: settled)
    settle_interrupted(store, clock.__next__)
    assert [run.verdict is not None for run in store.runs()] == [True, True, False, False, False]
    assert "could not be judged: judging other runs took all the time" in store.run(1).notices[-1]
