"""A run that has several ranks, on one node or on several: what is made of them once it has ended."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.ranks import NAMES, ranks_of
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.timing.steady import while_steady
from vitprof.store import RunStore
from vitprof.store.nodes import is_part, join_nodes
from vitprof.store.stored_run import StoredRun

Settle = Callable[[RunStore, int, float, float], dict[str, Any]]
"""`finalise.settle`."""


def of_ranks(store: RunStore, run: StoredRun, steps: Series, telemetry: Series) -> dict[str, Any]:
    """Returns the facts of a run that comparing its ranks gives; none where it is of one process."""
    if run.environment.get("world_size", 1) < 2:
        return {}
    series = store.steps_of_ranks(run.id, names=NAMES)
    series[int(run.environment.get("rank") or 0)] = series.pop(0)
    cores = others_cpu(steps, telemetry, run.environment).cores
    disk = mean(telemetry["disk_read_bytes_per_s"][while_steady(steps, telemetry["t_s"])]) / 1e6
    known = {"others_cores": cores, "disk_mb_per_s": disk}
    found: dict[str, Any] = {name: float(value) if np.isfinite(value) else None for name, value in known.items()}
    if run.environment.get("job"):  # 0 once they have been joined, too: before it was more
        found["missing_ranks"] = max(0, run.environment["world_size"] - len(series))
    nodes = run.facts.get("nodes") or ()
    clocks = dict(run.facts.get("clocks") or {})
    for node in nodes:
        clocks |= node.get("clocks") or {}
    ranks = ranks_of(series, nodes, clocks)
    return found if ranks is None else found | {"ranks": ranks.to_dict()}


def join(store: RunStore, run: StoredRun, settle: Settle) -> tuple[StoredRun, str]:
    """Makes one run of those of a job's nodes (`store.nodes`), as far as they have ended, and judges it again. Returns
    the run that this one's ranks are in now, and a line about it; "" where it is as it was. Raises `StoreError`, also
    where another node's program has just done so.
    """
    found = join_nodes(store, run.id)
    if found is None:
        later = "rank 0 was trained elsewhere: these ranks come into its run once both have ended, in one store"
        return run, later if is_part(run) else ""
    whole = store.run(found.run_id)
    if whole.t_origin_s is not None:
        took_s = whole.summary.wall_s if whole.summary else 0.0
        store.update_run(whole.id, **settle(store, whole.id, whole.t_origin_s, whole.t_origin_s + took_s))
    n = formats.count(len(found.parts) + 1, "command")
    return store.run(whole.id), f"run {whole.id} has the ranks of {n}"
