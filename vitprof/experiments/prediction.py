"""Predicts other strategies from a profiled run, and checks predictions by running them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vitprof.analysis.verdict.prediction import Calibration, predict
from vitprof.config import KNOBS, PARTS, RunConfig, catalog
from vitprof.config.availability import Machine, look_around, why_unavailable
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.cores import job_cores
from vitprof.errors import ConfigError, JobError
from vitprof.experiments.trials import OnProgress, Trial, ignore, run_trials, submit_trials
from vitprof.jobs.manager import JobManager
from vitprof.store import RunGroup, RunStore, StoredRun, predictions
from vitprof.store.predictions import (
    StoredPrediction,
    list_predictions,
    prediction,
    update_prediction,
)

MICRO, CHECK = "loader-only", "check"
"""Roles in the group: the run that a prediction is made from, and the one that checks it."""
MICRO_S = 2.0
USUAL = ("per-sample", "workers", "threads", "preprocessed", "memory", "memory-ahead", "device")
"""Strategies to predict unless others are given: each loads in a different way, and needs no copy of the data set."""


def usual_strategies(run: StoredRun, machine: Machine | None = None) -> list[str]:
    """Returns the strategies of `USUAL` that can run here, without the run's own."""
    machine = machine or look_around()
    info = catalog.dataset_info(run.config.dataset, run.config.n_images)
    # there it is the same as "memory"
    own = {
        run.config.strategy,
        *(["device"] if device_of(run) == "cpu" else []),
    }
    return [
        name
        for name in USUAL
        if name not in own and not why_unavailable(STRATEGIES[name], info, machine)
    ]


def alternative(run: StoredRun, strategy: str) -> RunConfig:
    """Returns the job of `run` with another strategy and that one's own settings, resolved. Raises `ConfigError`."""
    values = run.config.to_dict() | dict.fromkeys((*PARTS, *KNOBS))
    values |= {"strategy": strategy, "name": "", "device": device_of(run), "replay": None}
    # Keeps the run's augmentation, page cache and injected wait as far as the strategy can do them.
    wanted = run.config.augment
    elsewhere: tuple[str | None, ...] = (
        (wanted,) if wanted in ("off", None) else (wanted, "device", "cpu")
    )
    for tried in itertools.product(
        (run.config.page_cache, "as-is"), (run.config.inject, None), elsewhere
    ):
        try:
            kept = dict(zip(("page_cache", "inject", "augment"), tried, strict=True))
            return resolve(RunConfig.from_dict(values | kept))
        except ConfigError as error:
            refused = error
    raise refused


def device_of(run: StoredRun) -> str:
    """Returns the device that the run trained on, also where its config says "auto"."""
    return str(run.environment.get("device") or run.config.device)


def group_of(profile_run_id: int) -> str:
    """Returns the key of the group of the runs behind predictions from that run."""
    return RunGroup("prediction", profile_run_id).key


def profile_of(store: RunStore, run_id: int) -> StoredRun:
    """Returns the run to predict from. Raises `StoreError`; `JobError` if it does not show how long a step computes."""
    run = store.run(run_id)
    if run.live:
        raise JobError(f"run {run_id} is still going on; predict from it once it has ended")
    if run.config.loader_only:
        why = "it does not show how long a step computes; choose one that trained"
        raise JobError(f"run {run_id} is loader-only: {why}")
    if run.config.ranks > 1:
        raise JobError(
            f"run {run_id} is of {run.config.ranks} ranks: loaders are predicted for one; choose such a run"
        )
    if run.summary is None or not run.summary.n_steady_steps:
        raise JobError(
            f"run {run_id} has no steady steps to predict from; choose a run with more steps"
        )
    return run


def micro_runs(
    store: RunStore,
    run_id: int,
    strategies: Sequence[str] | None = None,
    *,
    seconds: float = MICRO_S,
) -> list[Trial]:
    """Returns a loader-only run of each strategy (`usual_strategies`). Raises `ConfigError`, and as `profile_of`."""
    run = profile_of(store, run_id)
    machine = look_around()
    info = catalog.dataset_info(run.config.dataset, run.config.n_images)
    chosen = (
        usual_strategies(run, machine) if strategies is None else list(dict.fromkeys(strategies))
    )
    micro: dict[str, Any] = {"epochs": None, "steps": None, "seconds": seconds, "loader_only": True}
    micro |= {"evaluate": False, "name": ""}
    trials = [Trial(replace(alternative(run, name), **micro), MICRO, name) for name in chosen]
    for name in chosen:
        if reason := why_unavailable(STRATEGIES[name], info, machine):
            raise ConfigError("strategies", name, reason)
    return trials


def submit_micro_runs(manager: JobManager, run_id: int) -> list[int]:
    """Queues all of `micro_runs` and returns the run ids. Raises as it does, before anything is queued."""
    return submit_trials(manager, micro_runs(manager.store, run_id), group_of(run_id))


def record_predictions(store: RunStore, run_id: int) -> list[StoredPrediction]:
    """Makes predictions from the loader-only runs that have ended, and returns all predictions from that run."""
    run = store.run(run_id)
    stored = list_predictions(store, run_id)
    predicted = {p.micro_run_id for p in stored}
    runs = store.runs(["done"], group_key=group_of(run_id), oldest_first=True)
    ended = [r for r in runs if r.role == MICRO and r.id not in predicted]
    if ended:
        profile = store.steps(run_id)
        expected_error = calibration_for(store, run).expected_error
        for micro in ended:
            # The job to run for a check: the micro run's, with the budget of the profiled one.
            budget = {
                name: getattr(run.config, name)
                for name in ("epochs", "steps", "seconds", "evaluate")
            }
            config = replace(micro.config, **budget, loader_only=False)
            prognosis = predict(
                profile,
                store.steps(micro.id),
                config,
                profile_transfer=run.config.transfer or "",
                on_cpu=device_of(run) == "cpu",
                cores=int(
                    run.environment.get("job_cpu_count")
                    or run.environment.get("cpu_count")
                    or job_cores()
                ),
                expected_error=expected_error,
            )
            if prognosis is not None and math.isfinite(prognosis.samples_per_s):
                predictions.add_prediction(
                    store, prognosis, config, profile_run_id=run_id, micro_run_id=micro.id
                )
    for p in stored:
        if p.verified_run_id is not None and p.measured_per_s is None:
            _note_check(store, p)
    return list_predictions(store, run_id)


def _note_check(store: RunStore, p: StoredPrediction) -> None:
    check = next(
        (r for r in store.runs(group_key=group_of(p.profile_run_id)) if r.id == p.verified_run_id),
        None,
    )
    if check is not None and check.live:
        return
    measured = check.summary.samples_per_s if check is not None and check.summary else math.nan
    if check is not None and check.status == "done" and math.isfinite(measured):
        update_prediction(store, p.id, measured_per_s=measured)
    else:
        update_prediction(store, p.id, verified_run_id=None)


def calibration_for(store: RunStore, run: StoredRun) -> Calibration:
    """Returns how accurate predictions for this run's machine and device have been."""
    return predictions.calibrate(store, host=run.owner_host, device=device_of(run))


def predict_strategies(
    manager: JobManager,
    run_id: int,
    strategies: Sequence[str],
    *,
    seconds: float,
    progress: OnProgress = ignore,
) -> list[StoredPrediction]:
    """Runs a loader-only job of each strategy, predicts each one from run `run_id`, and returns the new predictions."""
    trials = micro_runs(manager.store, run_id, strategies, seconds=seconds)
    ids = set[int]()
    for _, ended in run_trials(
        manager, trials, group_of(run_id), total=len(trials), progress=progress
    ):
        ids.add(ended)
        record_predictions(manager.store, run_id)
    return [p for p in list_predictions(manager.store, run_id) if p.micro_run_id in ids]


def failures(
    store: RunStore,
    run_id: int,
    strategies: Sequence[str] | None = None,
    *,
    remedy: str = "run it to see what it gives",
) -> list[str]:
    """Returns a line for each of `strategies` (default: all) whose latest loader-only run gave no prediction."""
    runs = store.runs(group_key=group_of(run_id), oldest_first=True)
    latest = {r.config.strategy: r for r in runs if r.role == MICRO}
    predicted = {p.micro_run_id for p in list_predictions(store, run_id)}
    lines = []
    for name, r in latest.items():
        if r.live or r.id in predicted or (strategies is not None and name not in strategies):
            continue
        few = f"too few batches in {r.config.seconds:g} s; {remedy}"
        lines.append(
            f"{name}: {few}"
            if r.status == "done"
            else f"{name}: {r.error or r.status} (run {r.id})"
        )
    return lines


def verify(
    manager: JobManager, given: Sequence[StoredPrediction], *, progress: OnProgress = ignore
) -> list[StoredPrediction]:
    """Runs the jobs that predictions of one run are about, unless that was done; returns these with the figures."""
    store = manager.store
    unchecked = [p for p in given if p.verified_run_id is None]
    if unchecked:
        trials = [Trial(p.config, CHECK, p.config.strategy) for p in unchecked]
        group = group_of(unchecked[0].profile_run_id)
        ended = run_trials(manager, trials, group, total=len(trials), progress=progress)
        for p, (_, run_id) in zip(unchecked, ended, strict=False):
            update_prediction(store, p.id, verified_run_id=run_id)
            _note_check(store, prediction(store, p.id))
    return [prediction(store, p.id) for p in given]
