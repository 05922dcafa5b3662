"""What is kept of a run that has ended; every config that validates has such an end, within a second."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.alarm import cpu_alarm
from tests.config.configs import configs
from tests.jobs.sending import columns, waiting
from tests.stored_series import append_steps, rewrite
from tests.ui.dashboard import add_run
from vitprof.analysis.timing import summary
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.availability import can_run
from vitprof.config.resolve import resolve, run_name
from vitprof.errors import ConfigError, StoreAwayError, StoreError
from vitprof.jobs import finalise
from vitprof.jobs.finalise import OPEN_S, settle, settle_interrupted, spark
from vitprof.recording.columns import summary_to_dict
from vitprof.store import RunQuery, RunStore


@pytest.mark.parametrize(("n", "loader_only"), [(0, True), (1, False), (40, False), (40, True)])
def test_the_figures_are_those_that_each_part_finds_alone(
    store: RunStore, n: int, loader_only: bool
) -> None:
    run_id = add_run(store, n=n, loader_only=loader_only)
    run, steps, telemetry = store.run(run_id), store.steps(run_id), store.telemetry(run_id)
    found = settle(store, run_id, 90.0, 200.0)
    alone = summary.summarise(
        run.config, steps, telemetry, run.phases, {}, t_origin_s=90.0, t_end_s=200.0
    )
    assert summary_to_dict(found["summary"]) == summary_to_dict(alone)
    assert (
        found["verdict"]
        == judge(run.config, steps, run.phases, telemetry, {}, possible=can_run).to_dict()
    )
    assert found["spark"] == spark(steps, run.phases)


def test_a_run_that_cannot_be_read_stops_no_program_from_opening_the_store(store: RunStore) -> None:
    """A config that an older version took, such as a warm-up of 10^12 steps."""
    bad, good = (add_run(store, status="running") for _ in range(2))
    for run_id in (bad, good):
        store.update_run(run_id, t_origin_s=90.0, owner_started=1.0, verdict=None)
    rewrite(store, bad, RunConfig().to_dict() | {"warmup_steps": 10**12})
    settle_interrupted(store)
    assert {r.id: r.status for r in store.list_runs(RunQuery(), limit=5)} == dict.fromkeys(
        (bad, good), "interrupted"
    )
    assert store.run(good).verdict is not None


def test_a_run_not_judged(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = (add_run(store, status="running", name=name) for name in ("bad", "good"))
    for run_id in (bad, good):
        store.update_run(
            run_id, t_origin_s=90.0, owner_started=1.0, summary=None, notices=["told before"]
        )

    def judged(config: RunConfig, *args: Any, **more: Any) -> Any:
        if config.name == "bad":
            raise ValueError("a defect\nof ours")
        return judge(config, *args, **more)

    monkeypatch.setattr(finalise, "judge", judged)
    settle_interrupted(store)
    run = store.run(bad)
    assert (run.status, run.summary, run.verdict) == ("interrupted", None, None)
    said = "this run could not be judged: ValueError: a defect; its steps and telemetry are kept and can be exported"
    assert run.notices == ("told before", said)
    assert "Traceback" in capsys.readouterr().err
    other = store.run(good)
    assert (other.summary is None, other.verdict is None, other.notices) == (
        False,
        False,
        ("told before",),
    )


def test_a_store_that_is_away_while_other_ranks_are_read_leaves_the_run_to_be_judged_later(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = add_run(store, n=40)
    store.update_run(run_id, environment=store.run(run_id).environment | {"world_size": 2})
    read = store.steps_of_ranks
    answers: list[Exception] = [
        StoreAwayError("the run store is unavailable", "restarting"),
        StoreError("damaged"),
    ]

    def read_later(*args: Any, **names: Any) -> Any:
        if answers:
            raise answers.pop(0)
        return read(*args, **names)

    monkeypatch.setattr(store, "steps_of_ranks", read_later)
    with pytest.raises(StoreAwayError):
        settle(store, run_id, 90.0, 200.0)
    assert "could not be judged: damaged" in settle(store, run_id, 90.0, 200.0)["notices"][-1]
    assert "verdict" in settle(store, run_id, 90.0, 200.0)


def test_judging_many_takes_no_longer_than_a_minute(
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


def made_steps(config: RunConfig, n: int, seed: int) -> list[list[float]]:
    """`n` steps as a job of this config may have had, with stalls."""
    rng = np.random.default_rng(seed)
    wait_s = rng.exponential(0.005, n) * rng.choice([0.0, 1.0, 100.0], n, p=[0.3, 0.6, 0.1])
    start_s = 100.0 + np.cumsum(wait_s + 0.005) - wait_s - 0.005
    figures = columns(
        n,
        step=np.arange(n),
        epoch=0,
        host_s=0.005,
        samples=min(config.batch_size, 2**20),
        warmup=np.arange(n) < config.warmup_steps,
        read_s=wait_s / 2,
        decode_s=wait_s / 2,
        worker=np.arange(n) % max(config.workers or 1, 1),
        **waiting(start_s, wait_s, np.full(n, 0.005)) | {"h2d_s": np.nan},
    )
    return np.column_stack([*figures.values()]).tolist()


def resolved(config: RunConfig) -> RunConfig | None:
    """The config as a job, without what does not go together; None where it is none. Such a config comes from a bundle,
    or from an older version: it need not be judged, but has an end too."""
    asked = config
    for _ in dataclasses.fields(config):
        try:
            done = resolve(asked)
        except ConfigError as error:
            default = getattr(RunConfig, error.field)
            if getattr(asked, error.field) == default:
                return None
            asked = dataclasses.replace(asked, **{error.field: default})
        else:
            run_name(done)
            return done
    raise AssertionError("it is refused again and again")


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(config=configs, n=st.sampled_from([0, 1, 30, 200]), seed=st.integers(0, 99))
def test_every_config_that_validates_is_settled(
    store: RunStore, config: RunConfig, n: int, seed: int
) -> None:
    run_id = store.create_run(RunConfig())
    append_steps(store, run_id, made_steps(config, n, seed))
    with cpu_alarm(1.0):
        job = resolved(config)
        rewrite(store, run_id, (job or config).to_dict())
        found = settle(store, run_id, 99.0, 200.0)
        store.update_run(run_id, status="done", **found)
    run = store.run(run_id)
    if job is not None:
        assert (run.notices, run.summary is None, run.verdict is None) == ((), False, False)
