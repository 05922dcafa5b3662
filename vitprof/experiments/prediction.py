"""Predicts other strategies from a profiled run, and checks predictions by running them.

The loader-only runs and the runs that check them share the group "prediction:<id of the profiled run>".
"""

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

MICRO = "loader-only"
"""The role of a run that a prediction is made from."""
CHECK = "check"
"""The role of a run that checks a prediction."""
MICRO_S = 2.0
"""Seconds of such a loader-only run."""
USUAL = ("per-sample", "workers", "threads", "preprocessed", "memory", "memory-ahead", "device")
"""Strategies to predict unless others are given: each loads in a different way, and needs no copy of the
data set."""


def usual_strategies(run: StoredRun, machine: Machine | None = None) -> list[str]:
    """Returns the strategies of `USUAL` that can run here, without the run's own."""
    machine = machine or look_around()
    info = catalog.dataset_info(run.config.dataset, run.config.n_images)
    left_out = {run.config.strategy}
    if device_of(run) == "cpu":
        # there it is the same as "memory"
        left_out.add("device")
    return [
        name
        for name in USUAL
        if name not in left_out and not why_unavailable(STRATEGIES[name], info, machine)
    ]


def alternative(run: StoredRun, strategy: str) -> RunConfig:
    """Returns the job of `run` with another strategy and that one's own settings, resolved.

    Keeps the run's augmentation, page cache and injected wait as far as the strategy can do them. Raises
    `ConfigError`.
    """
    values = run.config.to_dict() | dict.fromkeys((*PARTS, *KNOBS))
    values |= {"strategy": strategy, "name": "", "device": device_of(run), "replay": None}
    page_caches = (run.config.page_cache, "as-is")
    waits = (run.config.inject, None)
    augment = run.config.augment
    augments: tuple[str | None, ...] = (augment,)
    if augment not in ("off", None):
        # the same augmentation, wherever the strategy can do it
        augments = (augment, "device", "cpu")
    for page_cache, inject, place in itertools.product(page_caches, waits, augments):
        kept = {"page_cache": page_cache, "inject": inject, "augment": place}
        try:
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
    """Returns the run to predict from.

    Raises `StoreError`, and `JobError` where the run does not show how long a step computes.
    """
    run = store.run(run_id)
    if run.live:
        raise JobError(f"run {run_id} is still going on; predict from it once it has ended")
    if run.config.loader_only:
        why = "it does not show how long a step computes; choose one that trained"
        raise JobError(f"run {run_id} is loader-only: {why}")
    if run.config.ranks > 1:
        why = "loaders are predicted for one; choose such a run"
        raise JobError(f"run {run_id} is of {run.config.ranks} ranks: {why}")
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
    """Returns a loader-only run of each strategy (default: `usual_strategies`).

    Raises `ConfigError` where a strategy cannot load the data set or be run here; otherwise as
    `profile_of` does.
    """
    run = profile_of(store, run_id)
    machine = look_around()
    info = catalog.dataset_info(run.config.dataset, run.config.n_images)
    if strategies is None:
        strategies = usual_strategies(run, machine)
    chosen = list(dict.fromkeys(strategies))
    micro: dict[str, Any] = {
        "epochs": None,
        "steps": None,
        "seconds": seconds,
        "loader_only": True,
        "evaluate": False,
        "name": "",
    }
    trials = [Trial(replace(alternative(run, name), **micro), MICRO, name) for name in chosen]
    for name in chosen:
        reason = why_unavailable(STRATEGIES[name], info, machine)
        if reason:
            raise ConfigError("strategies", name, reason)
    return trials


def submit_micro_runs(manager: JobManager, run_id: int) -> list[int]:
    """Queues all of `micro_runs` and returns the run ids. Raises as it does, before anything is queued."""
    return submit_trials(manager, micro_runs(manager.store, run_id), group_of(run_id))


def record_predictions(store: RunStore, run_id: int) -> list[StoredPrediction]:
    """Makes predictions from the loader-only runs that have ended, records the checks that have, and
    returns all predictions from run `run_id`.

    May be called at any time and any number of times.
    """
    run = store.run(run_id)
    stored = list_predictions(store, run_id)
    predicted = {p.micro_run_id for p in stored}
    runs = store.runs(["done"], group_key=group_of(run_id), oldest_first=True)
    ended = [r for r in runs if r.role == MICRO and r.id not in predicted]
    if ended:
        profile = store.steps(run_id)
        expected_error = calibration_for(store, run).expected_error
        seen = run.environment
        # earlier versions recorded the machine's cores only
        cores = int(seen.get("job_cpu_count") or seen.get("cpu_count") or job_cores())
        for micro in ended:
            # The job to run for a check: the micro run's, with the budget of the profiled one.
            config = replace(
                micro.config,
                epochs=run.config.epochs,
                steps=run.config.steps,
                seconds=run.config.seconds,
                evaluate=run.config.evaluate,
                loader_only=False,
            )
            prognosis = predict(
                profile,
                store.steps(micro.id),
                config,
                profile_transfer=run.config.transfer or "",
                on_cpu=device_of(run) == "cpu",
                cores=cores,
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
    """Records what the run that checks `p` measured; without a figure, `p` becomes unchecked again."""
    runs = store.runs(group_key=group_of(p.profile_run_id))
    check = next((run for run in runs if run.id == p.verified_run_id), None)
    if check is not None and check.live:
        return
    measured = math.nan
    if check is not None and check.status == "done" and check.summary:
        measured = check.summary.samples_per_s
    if math.isfinite(measured):
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
    """Runs a loader-only job of each strategy, predicts each one from run `run_id`, and returns the new
    predictions.

    A strategy whose loader-only run fails or is too short has none: `failures` says why. Raises as
    `micro_runs` does.
    """
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
    """Returns a line for each of `strategies` (default: all) whose latest loader-only run gave no
    prediction.

    `remedy`: what to do about a run that had no steady steps. Call `record_predictions` first.
    """
    runs = store.runs(group_key=group_of(run_id), oldest_first=True)
    latest = {r.config.strategy: r for r in runs if r.role == MICRO}
    predicted = {p.micro_run_id for p in list_predictions(store, run_id)}
    lines = []
    for name, run in latest.items():
        if strategies is not None and name not in strategies:
            continue
        if run.live or run.id in predicted:
            continue
        if run.status == "done":
            lines.append(f"{name}: too few batches in {run.config.seconds:g} s; {remedy}")
        else:
            lines.append(f"{name}: {run.error or run.status} (run {run.id})")
    return lines


def verify(
    manager: JobManager, given: Sequence[StoredPrediction], *, progress: OnProgress = ignore
) -> list[StoredPrediction]:
    """Runs the jobs that predictions of one run are about, and returns these with the figures.

    A prediction that was checked before, or that a run checks now, is left as it is.
    """
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
