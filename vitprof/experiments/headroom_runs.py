"""Measures headroom: runs the four anchors of a job alternately, as the group "headroom:<id of the run>"."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace

from vitprof.analysis.verdict.headroom import ANCHOR_ROLES, Anchor, Headroom, anchor, headroom
from vitprof.config import RunConfig, injection, parts
from vitprof.config.resolve import resolve
from vitprof.datasets import catalog
from vitprof.errors import ConfigError
from vitprof.experiments.trials import (
    OnProgress,
    Stop,
    Trial,
    ignore,
    never,
    run_trials,
    submit_trials,
)
from vitprof.home import home
from vitprof.jobs.manager import JobManager
from vitprof.store import RunGroup, RunStore, StoredRun
from vitprof.telemetry.tmpfs import is_in_ram

REPEATS = 2
"""How often each anchor is run."""
STEADY_STEPS = 60
"""Steady steps of an anchor where the job does not say how many steps it has: an interval 1.3 times
as wide as of very many (`analysis.intervals`)."""
MOST_STEPS = 300
"""The most steps of an anchor: there are eight runs, and more steps would hardly narrow the interval,
which the repeats determine."""


def group_of(run: StoredRun) -> str:
    """Returns the key of the group of the anchors of `run`; for an anchor, of its own group."""
    own = run.group
    if own is not None and own.kind == "headroom":
        return own.key
    return RunGroup("headroom", run.id).key


def anchor_configs(config: RunConfig) -> dict[str, RunConfig]:
    """Returns the job for each anchor of `config` that can be measured, by role and in order.

    Each has the steps of `config` if it counts in steps, otherwise `STEADY_STEPS` steady ones, and at
    most `MOST_STEPS` in all. A cold one has at most an epoch, since a second epoch would find its files
    in memory. A slow drive is part of the storage: C reads the local disk instead. Where no cold run is
    possible (`why_no_cold`), C takes the page cache as it is. Raises `ConfigError`.
    """
    config = resolve(config)
    if config.loader_only:
        raise ConfigError("loader_only", True, "headroom compares steps of training; leave it out")
    if config.replay:
        raise ConfigError(
            "replay", config.replay, "it is itself an anchor of headroom; leave it out"
        )
    steps = min(config.steps or config.warmup_steps + STEADY_STEPS, MOST_STEPS)
    changes: dict[str, dict[str, object]] = {"A": {"replay": "device"}, "B": {"replay": "host"}}
    job = replace(
        config, epochs=None, seconds=None, steps=steps, evaluate=False, page_cache="as-is"
    )
    # a wait belongs to the stage it is put into: replayed batches need the copy at most
    if config.inject is not None:
        changes["A"]["inject"] = None
        if injection(config.inject)[0] != "transfer":
            changes["B"]["inject"] = None
    can_be_cold = not why_no_cold(config)
    changes["C"] = {"page_cache": "warm"} if can_be_cold else {}
    if config.location == "slow-drive":
        changes["C"] |= {
            "location": "disk",
            "slow_drive": None,
            "slow_mb_s": None,
            "slow_latency_ms": None,
        }
    if can_be_cold:
        n_of_rank = catalog.dataset_info(config.dataset, config.n_images).n_train // config.ranks
        n_batches = math.ceil(n_of_rank / config.batch_size)
        # In a short epoch the warm-up would take most of the steps, and each batch is cold only once.
        warmup = min(config.warmup_steps, n_batches // 4)
        changes["D"] = {
            "page_cache": "cold",
            "steps": min(steps, n_batches),
            "warmup_steps": warmup,
        }
    elif config.location == "slow-drive":
        # it is slow without a cold page cache too
        changes["D"] = {}
    if config.name:
        for role, change in changes.items():
            change["name"] = f"{config.name[:180]}, anchor {role}"
    return {role: resolve(replace(job, **change)) for role, change in changes.items()}  # type: ignore[arg-type]


def why_no_cold(config: RunConfig) -> str:
    """Returns why the resolved job `config` cannot be run over a cold page cache; "" if it can."""
    if not parts.STORAGES[config.storage or ""].on_disk:
        return (
            f"storage {config.storage} is in memory while training: no file is read, cold or warm"
        )
    if config.location == "ram-disk":
        return "the files are on a RAM disk while training, which cannot be cold"
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop files from its page cache"
    if is_in_ram(home().absolute()):
        return f"{home()} is on a RAM disk, which cannot be cold; set VITPROF_HOME to a directory on a disk"
    return ""


def anchors(run: StoredRun, repeats: int = REPEATS) -> list[Trial]:
    """Returns the anchors of `run` alternately: A B C D, A B C D. Raises `ConfigError`."""
    configs = anchor_configs(run.config)
    return [
        Trial(config, role, f"anchor {role}")
        for _ in range(repeats)
        for role, config in configs.items()
    ]


def submit_headroom(manager: JobManager, run: StoredRun) -> list[int]:
    """Queues all anchors of `run` and returns the run ids. Raises `ConfigError`, `JobError`."""
    return submit_trials(manager, anchors(run), group_of(run))


def measure_headroom(
    manager: JobManager,
    run: StoredRun,
    *,
    repeats: int = REPEATS,
    progress: OnProgress = ignore,
    stop: Stop = never,
) -> Headroom | None:
    """Runs the anchors of `run` and returns the headroom from all its anchors so far; None if none has
    ended.

    An anchor that fails is not run again. Once `stop()` returns true, the running one is stopped; what
    was measured counts.
    """
    trials = anchors(run, repeats)
    failed = set[str]()
    able = (trial for trial in trials if trial.role not in failed)
    for trial, run_id in run_trials(
        manager, able, group_of(run), total=len(trials), progress=progress, stop=stop
    ):
        if manager.store.run(run_id).status == "failed":
            failed.add(trial.role)
    return find_headroom(manager.store, run)


def find_headroom(store: RunStore, run: StoredRun) -> Headroom | None:
    """Returns the headroom that was measured for `run`, or that `run` is an anchor of; None if no anchor
    has ended.

    Every run of an anchor that finished counts as a repeat. Stopped ones are mentioned where there are
    no others.
    """
    group = group_of(run)
    runs = [r for r in store.runs(group_key=group, oldest_first=True) if r.role in ANCHOR_ROLES]
    ended = [r for r in runs if not r.live]
    if not ended:
        return None
    config = runs[0].config
    measured: list[Anchor] = []
    notes: list[str] = []
    for role in ANCHOR_ROLES:
        of_role = [r for r in ended if r.role == role]
        of_role = [r for r in of_role if r.status != "stopped"] or of_role
        result = anchor(role, [store.steps(r.id) for r in of_role if r.status == "done"])
        if of_role or role != "D":
            measured.append(result)
        note = _note(result, of_role)
        if note:
            notes.append(f"anchor {role}: {note}")
    of_cold = [r for r in runs if r.role == "D"]
    if not of_cold:
        why = why_no_cold(config) or "it was not run"
        notes.append(f"no run over a cold page cache (D): {why}")
    # the job as requested, slow drive or cold page cache included
    requested = run.config if run.group_key != group else config
    on_slow_drive = any(r.config.location == "slow-drive" for r in of_cold)
    baseline = "D" if requested.page_cache == "cold" or on_slow_drive else "C"
    live = {r.role for r in runs if r.live}
    return headroom(
        measured,
        baseline=baseline,
        notes=notes,
        simulated=config.simulated,
        pending=[a.role for a in measured if not a.n_runs and a.role in live],
    )


def _note(result: Anchor, ended: Sequence[StoredRun]) -> str:
    """Returns what the user should know of an anchor and its ended runs; "" for nothing."""
    failed = [run for run in ended if run.status != "done"]
    if failed:
        how = f"run {failed[0].id}: {failed[0].error or failed[0].status}"
        return f"{len(failed)} of {len(ended)} runs did not finish ({how})"
    if not ended:
        return ""
    if not result.n_runs:
        return "it had no steady steps; give it more steps, or a smaller batch"
    if math.isnan(result.low):
        return f"{result.n_steps} steady steps are too few for an interval"
    return ""
