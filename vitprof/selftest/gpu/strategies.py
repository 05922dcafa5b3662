"""Every strategy: a job of 20 steps each, with worker processes and pinned memory where the strategy takes them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import why_not
from vitprof.config.strategies import STRATEGIES, strategy
from vitprof.errors import VitprofError, one_line
from vitprof.experiments.trials import Trial, job_manager, run_trials
from vitprof.selftest.cases import N_PHOTOS
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.report import Outcome, judged
from vitprof.store import RunStore

STEPS = 20


def settings_for(name: str) -> dict[str, Any]:
    """Returns the settings of a job with a strategy: photos where it can load them, workers and pinning where it takes
    them.
    """
    plan = strategy(name)
    info = dataset_info("photos", N_PHOTOS)
    settings: dict[str, Any] = {"dataset": "photos", "n_images": N_PHOTOS}
    if why_not(info, plan.combination(info)) is not None:
        info, settings = dataset_info("digits"), {"dataset": "digits"}
    taken = plan.knobs(plan.combination(info), info)
    wanted = {"workers": 2, "pin_memory": True, "slow_mb_s": 200.0, "slow_latency_ms": 1.0}
    return settings | {"strategy": name, "batch_size": 8} | {k: v for k, v in wanted.items() if k in taken}


def every_strategy(bench: Bench) -> Outcome:
    """Runs each strategy that can run here, one after another, and checks its steps."""
    wrong: list[str] = []
    unavailable: list[str] = []
    step_ms: dict[str, float] = {}
    with (
        contextlib.closing(RunStore(f"sqlite:///{bench.directory / 'runs.sqlite'}")) as store,
        job_manager(store, logs=bench.directory) as manager,
    ):
        for name in STRATEGIES:
            settings = settings_for(name)
            info = dataset_info(settings["dataset"], settings.get("n_images"))
            if reason := why_unavailable(strategy(name), info):
                unavailable.append(f"{name} ({reason})")
                continue
            job = {"device": bench.device.name, "steps": STEPS, "warmup_steps": 4, "evaluate": False}
            try:
                [(_, run_id)] = run_trials(manager, [Trial(RunConfig(**settings | job), name)], "")
            except VitprofError as error:
                wrong.append(f"{name}: {one_line(error)}")
                continue
            run = store.run(run_id)
            failure = wrong_steps(store.steps(run_id)) if run.status == "done" else f"{run.status}: {run.error}"
            if failure:
                wrong.append(f"{name}: {failure}")
            else:
                step_ms[name] = run.summary.step_ms_median if run.summary is not None else float("nan")
    measured = f"{len(step_ms)} of {len(STRATEGIES)} trained {STEPS} steps"
    if unavailable:
        measured += f"; cannot run here: {', '.join(unavailable)}"
    return judged(measured, wrong, passed=list(step_ms), cannot_run=unavailable, step_ms_median=step_ms)


def wrong_steps(steps: Series) -> str:
    """Returns what is wrong with the steps of a run that has finished; "" where nothing is."""
    if len(steps["step"]) != STEPS:
        return f"it has {len(steps['step'])} steps"
    for column in ("data_wait_s", "h2d_s", "compute_s", "step_s"):
        if not (np.isfinite(steps[column]).all() and (steps[column] >= 0).all()):
            return f"{column} has values that are negative or not known"
    return "" if (steps["compute_s"] > 0).all() else "a step without compute"
