"""Every strategy: a job of 20 steps each, with worker processes and pinned memory where the strategy takes them."""

from __future__ import annotations

import numpy as np

from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.strategies import strategy
from vitprof.errors import JobStopped, VitprofError, one_line
from vitprof.selftest.gpu.host import NAMES, Host, OutOfTime, settings_for
from vitprof.selftest.gpu.outcome import Outcome, judged

STEPS = 20


def every_strategy(host: Host) -> Outcome:
    """Runs each strategy that can run here, one after another, and checks its steps."""
    wrong: list[str] = []
    passed: list[str] = []
    missing: list[str] = []
    took: dict[str, float] = {}
    try:
        for name in NAMES:
            settings = settings_for(name)
            if reason := why_unavailable(strategy(name), dataset_info(settings["dataset"], settings.get("n_images"))):
                missing.append(f"{name} ({reason})")
                continue
            try:
                config = RunConfig(device=host.device, steps=STEPS, warmup_steps=4, evaluate=False, **settings)
                run = host.wait(host.start(config))
            except (OutOfTime, JobStopped):
                raise
            except VitprofError as error:
                wrong.append(f"{name}: {one_line(error)}")
                continue
            why = _wrong(host, run.id) if run.status == "done" else f"{run.status}: {run.error}"
            if why:
                wrong.append(f"{name}: {why}")
            else:
                passed.append(name)
                took[name] = run.summary.step_ms_median if run.summary is not None else float("nan")
    except OutOfTime:
        done = len(wrong) + len(passed) + len(missing)
        wrong.append(f"time ran out before {', '.join(NAMES[done:])}")
    told = f"{len(passed)} of {len(NAMES)} trained {STEPS} steps"
    if missing:
        told += f"; cannot run here: {', '.join(missing)}"
    return judged(told, wrong, passed=passed, cannot_run=missing, step_ms_median=took)


def _wrong(host: Host, run_id: int) -> str:
    """Returns what is wrong with the steps of a run that has finished; "" where nothing is."""
    steps = host.manager.store.steps(run_id)
    if len(steps["step"]) != STEPS:
        return f"it has {len(steps['step'])} steps"
    for column in ("data_wait_s", "h2d_s", "compute_s", "step_s"):
        if not (np.isfinite(steps[column]).all() and (steps[column] >= 0).all()):
            return f"{column} has values that are negative or not known"
    if not (steps["compute_s"] > 0).all():
        return "a step without compute"
    return ""
