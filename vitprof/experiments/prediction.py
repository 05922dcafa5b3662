"""Predicts other strategies from a profiled run, and checks predictions by running them.

The loader-only runs and the runs that check them share the group "prediction:<id of the profiled run>". Submitting jobs
and recording their results are separate calls: a page does the one when a button is pressed, the other when it is
drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence

from vitprof.analysis.verdict.prediction import Calibration, predict
from vitprof.config.availability import look_around, why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError, JobError, StoreAwayError
from vitprof.experiments.alternatives import MICRO_S, alternative, device_of, micro_config, usual_strategies
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore, StoredRun
from vitprof.store.groups import RunGroup
from vitprof.store.predictions import (
    StoredPrediction,
    add_prediction,
    calibrate,
    list_predictions,
    prediction,
    update_prediction,
)

MICRO, CHECK = "loader-only", "check"
"""Roles in the group: the run that a prediction is made from, and the one that checks it."""
POLL_S = 0.2

OnRun = Callable[[StoredRun, int, int], None]
"""Called with a run, its number from 1, and the number of runs."""
Stop = Callable[[], bool]


def _quiet(run: StoredRun, number: int, total: int) -> None:
    return


def group_of(profile_run_id: int) -> str:
    """Returns the key of the group of the runs behind predictions from that run."""
    return RunGroup("prediction", profile_run_id).key


def profile_of(store: RunStore, run_id: int) -> StoredRun:
    """Returns the run to predict from. Raises `StoreError`, and `JobError` where it does not show how long a step
    computes.
    """
    run = store.run(run_id)
    if run.live:
        raise JobError(f"run {run_id} is still going on; predict from it once it has ended")
    if run.config.loader_only:
        raise JobError(
            f"run {run_id} is loader-only: it does not show how long a step computes; choose one that trained"
        )
    if run.summary is None or not run.summary.n_steady_steps:
        raise JobError(f"run {run_id} has no steady steps to predict from; choose a run with more steps")
    return run


def submit_micro_runs(
    manager: JobManager, run_id: int, strategies: Sequence[str] | None = None, *, seconds: float = MICRO_S
) -> list[int]:
    """Queues a loader-only run of each strategy (default: `usual_strategies`) and returns the run ids.

    Raises `ConfigError`, before anything is queued, where a strategy cannot load the run's data set or cannot be run
    here; otherwise raises as `profile_of` does.
    """
    run = profile_of(manager.store, run_id)
    machine = look_around()
    info = dataset_info(run.config.dataset, run.config.n_images)
    chosen = usual_strategies(run, machine) if strategies is None else list(dict.fromkeys(strategies))
    configs = [micro_config(alternative(run, name), seconds) for name in chosen]
    for name in chosen:
        if why := why_unavailable(STRATEGIES[name], info, machine):
            raise ConfigError("strategies", name, why)
    return [manager.submit(config, group_key=group_of(run_id), role=MICRO) for config in configs]


def record_predictions(store: RunStore, run_id: int) -> list[StoredPrediction]:
    """Makes predictions from the loader-only runs that have ended, records the checks that have, and returns all
    predictions from that run.

    May be called at any time and any number of times.
    """
    run = store.run(run_id)
    found = list_predictions(store, run_id)
    predicted = {p.micro_run_id for p in found}
    ended = [
        r
        for r in store.runs(["done"], group_key=group_of(run_id), oldest_first=True)
        if r.role == MICRO and r.id not in predicted
    ]
    if ended:
        profile, expected_error = store.steps(run_id), calibration_for(store, run).expected_error
        for micro in ended:
            # The job to run for a check: the micro run's, with the budget of the profiled one.
            budget = {name: getattr(run.config, name) for name in ("epochs", "steps", "seconds", "evaluate")}
            config = dataclasses.replace(micro.config, **budget, loader_only=False)
            prognosis = predict(
                profile,
                store.steps(micro.id),
                config,
                profile_transfer=run.config.transfer or "",
                on_cpu=device_of(run) == "cpu",
                cores=int(run.environment.get("cpu_count") or os.cpu_count() or 1),
                expected_error=expected_error,
            )
            if prognosis is not None and math.isfinite(prognosis.samples_per_s):
                add_prediction(store, prognosis, config, profile_run_id=run_id, micro_run_id=micro.id)
    for p in found:
        if p.verified_run_id is not None and p.measured_per_s is None:
            _note_check(store, p)
    return list_predictions(store, run_id)


def _note_check(store: RunStore, p: StoredPrediction) -> None:
    """Records what the run that checks `p` measured; where it gave no figure, `p` becomes unchecked again."""
    check = next((r for r in store.runs(group_key=group_of(p.profile_run_id)) if r.id == p.verified_run_id), None)
    if check is not None and check.live:
        return
    measured = check.summary.samples_per_s if check is not None and check.summary else math.nan
    if check is not None and check.status == "done" and math.isfinite(measured):
        update_prediction(store, p.id, measured_per_s=measured)
    else:
        update_prediction(store, p.id, verified_run_id=None)


def calibration_for(store: RunStore, run: StoredRun) -> Calibration:
    """Returns how accurate predictions for this run's machine and device have been."""
    return calibrate(store, host=run.owner_host, device=device_of(run))


def predict_strategies(
    manager: JobManager,
    run_id: int,
    strategies: Sequence[str] | None = None,
    *,
    seconds: float = MICRO_S,
    progress: OnRun = _quiet,
    stop: Stop = lambda: False,
) -> list[StoredPrediction]:
    """Runs a loader-only job of each strategy, predicts each one from run `run_id`, and returns the new predictions.

    A strategy whose loader-only run fails or is too short has none: `failures` says why. Raises as `submit_micro_runs`.
    """
    ids = submit_micro_runs(manager, run_id, strategies, seconds=seconds)
    for _ in _waited(manager, ids, progress, stop):
        record_predictions(manager.store, run_id)
    return [p for p in record_predictions(manager.store, run_id) if p.micro_run_id in ids]


def failures(
    store: RunStore,
    run_id: int,
    strategies: Sequence[str] | None = None,
    *,
    remedy: str = "run it to see what it gives",
) -> list[str]:
    """Returns one line for each of `strategies` (default: all) whose latest loader-only run for that run gave no
    prediction.

    `remedy` is what to do about a run that had no steady steps. Call `record_predictions` first.
    """
    latest = {
        r.config.strategy: r for r in store.runs(group_key=group_of(run_id), oldest_first=True) if r.role == MICRO
    }
    predicted = {p.micro_run_id for p in list_predictions(store, run_id)}
    lines = []
    for name, r in latest.items():
        if r.live or r.id in predicted or (strategies is not None and name not in strategies):
            continue
        few = f"too few batches in {r.config.seconds:g} s; {remedy}"
        lines.append(f"{name}: {few}" if r.status == "done" else f"{name}: {r.error or r.status} (run {r.id})")
    return lines


def submit_check(manager: JobManager, prediction_id: int) -> int:
    """Queues the job that a prediction is about, unless a run checks or checked it already; returns the run's id."""
    p = prediction(manager.store, prediction_id)
    if p.verified_run_id is not None:
        return p.verified_run_id
    run_id = manager.submit(p.config, group_key=group_of(p.profile_run_id), role=CHECK)
    update_prediction(manager.store, prediction_id, verified_run_id=run_id)
    return run_id


def verify(
    manager: JobManager, prediction_id: int, *, progress: OnRun = _quiet, stop: Stop = lambda: False
) -> StoredPrediction:
    """Runs the job that a prediction is about, and returns the prediction with what the run measured."""
    run_id = submit_check(manager, prediction_id)
    p = prediction(manager.store, prediction_id)
    if p.measured_per_s is None:
        for _ in _waited(manager, [run_id], progress, stop):
            _note_check(manager.store, p)
    return prediction(manager.store, prediction_id)


def _waited(manager: JobManager, ids: list[int], progress: OnRun, stop: Stop) -> Iterator[int]:
    """Yields each of `ids` when it has ended. Stops all of them once `stop()` returns true, or if the loop is left."""
    try:
        for number, run_id in enumerate(ids, 1):
            while (manager.owns(run_id) or manager.why_away(run_id)) and not manager.wait(run_id, POLL_S):
                if stop():
                    _stop_all(manager, ids)
                with contextlib.suppress(StoreAwayError):  # the run continues
                    progress(manager.store.run(run_id), number, len(ids))
            yield run_id
    finally:
        _stop_all(manager, ids)
        for run_id in ids:
            if manager.owns(run_id):
                manager.wait(run_id)


def _stop_all(manager: JobManager, ids: list[int]) -> None:
    for run_id in reversed(ids):  # the last first, so that none starts meanwhile
        if manager.owns(run_id):
            manager.stop(run_id)
