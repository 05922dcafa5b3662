"""Predictions by real jobs: which strategies, from which runs, and what checking one gives."""

import math
import re
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine_fixtures import CHEAP, N_PHOTOS, small_home, vitprof_threads, wait_until  # noqa: F401
from vitprof.config import KNOBS, RunConfig
from vitprof.config.availability import Machine
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError, JobError, StoreError
from vitprof.experiments import prediction as jobs
from vitprof.experiments.prediction import USUAL, alternative, usual_strategies
from vitprof.experiments.trials import Progress
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore, StoredRun
from vitprof.store.predictions import calibrate, list_predictions

QUICK: dict[str, Any] = CHEAP | {
    "strategy": "per-sample",
    "device": "simulated:4,5",
    "steps": 30,
    "evaluate": False,
    "isolation": "thread",  # in a process of its own `digits` would have its full size
}
ROOMY = Machine(gpus=(), ram_bytes=2**36, disk_bytes=2**40, tmpfs=None)


def profiled(manager: JobManager, **config: Any) -> StoredRun:
    run_id = manager.submit(RunConfig(**(QUICK | config)))
    assert manager.wait(run_id, 120)
    return manager.store.run(run_id)


def stored(store: RunStore, **config: Any) -> StoredRun:
    """A run that never ran."""
    return store.run(store.create_run(resolve(RunConfig(**(QUICK | config)))))


@pytest.mark.usefixtures("small_home")
class TestPredicting:
    @pytest.mark.measured
    def test_predicted_then_checked(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = profiled(manager)
        assert run.status == "done", run.error
        assert math.isnan(jobs.calibration_for(manager.store, run).median_abs_error), (
            "none is known at first"
        )
        shown: list[Progress] = []
        found = jobs.predict_strategies(
            manager, run.id, ["memory", "generator"], seconds=0.5, progress=shown.append
        )
        assert [p.config.strategy for p in found] == ["memory", "generator"]
        assert all(0 < p.low <= p.samples_per_s <= p.high for p in found)
        assert all(p.measured_per_s is None and p.error is None for p in found)
        assert (found[0].config.steps, found[0].config.loader_only) == (30, False)
        micro = manager.store.run(found[0].micro_run_id).config
        assert (micro.seconds, micro.steps, micro.loader_only, micro.evaluate) == (
            0.5,
            None,
            True,
            False,
        )
        # the device computes 4.16 ms a step, and nothing can be faster than that
        assert found[0].samples_per_s <= 32 / 4.159e-3
        assert {(p.words, p.done) for p in shown} <= {("memory", 0), ("generator", 1)}

        with monkeypatch.context() as patch:
            patch.setattr("vitprof.engine.train._fit", lambda job: 1 / 0)
            (failed,) = jobs.verify(manager, found[:1])
        assert (failed.measured_per_s, failed.verified_run_id) == (
            None,
            None,
        )  # so it can be checked again
        (checked,) = jobs.verify(manager, [failed])
        assert checked.measured_per_s is not None
        assert checked.error == pytest.approx(checked.samples_per_s / checked.measured_per_s - 1)
        assert checked.verified_run_id is not None
        assert manager.store.run(checked.verified_run_id).role == jobs.CHECK
        assert jobs.verify(manager, [checked]) == [checked]  # nothing is run again
        error = jobs.calibration_for(manager.store, run)
        assert (error.n, error.median_abs_error) == (1, pytest.approx(abs(checked.error or 0)))
        assert calibrate(manager.store, device="cpu").n == 0
        assert jobs.record_predictions(manager.store, run.id) == list_predictions(
            manager.store, run.id
        )
        manager.store.delete(run.id)
        assert list_predictions(manager.store) == []

    def test_one_that_fails_has_no_prediction(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = profiled(manager)

        broken = Mock(side_effect=OSError("no such thread"))
        monkeypatch.setattr("vitprof.engine.loaders.batches.AheadReader.__init__", broken)
        found = jobs.predict_strategies(manager, run.id, ["memory-ahead", "memory"], seconds=0.5)
        assert [p.config.strategy for p in found] == ["memory"]
        (line,) = jobs.failures(manager.store, run.id)
        assert re.match("memory-ahead: .*no such thread", line)

    def test_runs_that_tell_nothing_and_nothing_is_queued_where_one_cannot_run(
        self, manager: JobManager
    ) -> None:
        for config, why in (
            ({"loader_only": True}, "loader-only"),
            ({"steps": 2}, "no steady steps"),
        ):
            run = profiled(manager, **config)
            with pytest.raises(JobError, match=why):
                jobs.submit_micro_runs(manager, run.id)
        run = profiled(manager)
        for wrong in ("dali", "nonsense"):
            with pytest.raises(ConfigError, match=wrong):
                jobs.predict_strategies(manager, run.id, ["memory", wrong], seconds=0.2)
        assert manager.store.runs(group_key=jobs.group_of(run.id)) == []
        with pytest.raises(JobError, match="still going on"):
            jobs.submit_micro_runs(manager, manager.store.create_run(RunConfig()))
        with pytest.raises(StoreError, match="no run 999"):
            jobs.submit_micro_runs(manager, 999)


def test_the_same_job_with_that_strategys_own_settings_and_a_page_cache_where_there_is_one(
    store: RunStore,
) -> None:
    run = stored(store, strategy="workers", workers=7, lr=0.1, seed=3)
    other = alternative(run, "threads")
    own = resolve(RunConfig(**(QUICK | {"strategy": "threads", "lr": 0.1, "seed": 3})))
    assert (other, other.workers) == (own, 2)
    memory = alternative(run, "memory")
    assert {n: getattr(memory, n) for n in KNOBS if getattr(memory, n) is not None} == {
        "shuffle": "full"
    }
    run = stored(store, strategy="preprocessed", page_cache="cold")
    assert (alternative(run, "hdf5").page_cache, alternative(run, "memory").page_cache) == (
        "cold",
        "as-is",
    )


@pytest.mark.parametrize(
    ("dataset", "asked", "strategy", "becomes"),
    [
        ("digits", "cpu", "device", "device"),
        ("digits", "cpu", "workers", "cpu"),
        ("photos", "cpu", "device", "device"),
        ("photos", "off", "threads", "off"),
    ],
)
def test_augmentation_stays(
    store: RunStore, dataset: str, asked: str, strategy: str, becomes: str
) -> None:
    size = {"n_images": N_PHOTOS} if dataset == "photos" else {}
    run = stored(store, strategy="per-sample", dataset=dataset, augment=asked, **size)
    assert alternative(run, strategy).augment == becomes


def test_usual_ones(store: RunStore) -> None:
    run = stored(store, strategy="memory")
    assert set(usual_strategies(run, ROOMY)) == set(USUAL) - {"memory"}
    store.update_run(run.id, environment={"device": "cpu"})
    assert "device" not in usual_strategies(store.run(run.id), ROOMY)
    small = Machine(gpus=(), ram_bytes=0, disk_bytes=2**40, tmpfs=None)
    assert not {"memory", "memory-ahead", "device"} & set(usual_strategies(run, small))
