"""A run that has several ranks, on one node or on several: what is made of them once it has ended."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.stragglers import NAMES, ranks_of
from vitprof.analysis.timing.steady import while_steady
from vitprof.store import RunStore
from vitprof.store.nodes import is_part, join_nodes
from vitprof.store.stored_run import StoredRun
from vitprof.telemetry.ranks import RankClocks

OF_A_TASK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables with this command's rank, where a launcher starts one for each rank."""


class Places:
    """The processes of a command that are recorded, by their rank: the run is of the first one of rank 0 that describes
    its training, or the first of a node that has not rank 0; of other ranks only the steps are taken.
    """

    def __init__(self, facts: Callable[[dict[str, Any]], object]) -> None:
        """`facts` is called with what is found out about the ranks' GPUs."""
        self.first = -1
        """The rank of the process whose run it is; -1 until it is found."""
        self._ranks, self._n_unread, self._choosing = set[int](), 0, threading.Lock()
        self._alone = next(
            (int(rank) for name in OF_A_TASK if (rank := os.environ.get(name, "")).isdecimal()), 0
        )
        self._clocks = RankClocks(lambda mhz: facts({"clocks": mhz}))
        self.close = self._clocks.close

    @property
    def found(self) -> bool:
        """Returns whether the process that is recorded was found."""
        return self.first >= 0

    def place(self, described: Mapping[str, Any]) -> int | None:
        """Returns the rank of a process as whose it is recorded; None where it is not."""
        with self._choosing:
            rank = int(described.get("rank") or 0)
            leads = rank in (0, self._alone) or described.get("local_rank") == 0
            # another training, or one that was started again
            if rank in self._ranks or (rank == 0 and self.found):
                self._n_unread += leads
                return None
            if leads and not self.found:
                self.first = rank
            self._ranks.add(rank)
            if uuid := described.get("gpu_uuid"):
                self._clocks.add(rank, uuid)
            return rank

    def unrecorded(self) -> str:
        """Returns a line on the processes that trained and are not recorded; "" for none."""
        n = self._n_unread
        others = "another process" if n == 1 else f"{n} other processes"
        return (
            f"{others} of the command trained, too: this is the run of the first one" if n else ""
        )


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
    found: dict[str, Any] = {
        name: float(value) if np.isfinite(value) else None for name, value in known.items()
    }
    # 0 once they have been joined, too: before it was more
    if run.environment.get("job"):
        found["missing_ranks"] = max(0, run.environment["world_size"] - len(series))
    ranks = ranks_of(series, run.facts)
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
        store.update_run(
            whole.id, **settle(store, whole.id, whole.t_origin_s, whole.t_origin_s + took_s)
        )
    whole = store.run(whole.id)
    return (
        whole,
        f"run {whole.id} has the ranks of {formats.count(len(whole.facts['nodes']), 'command')}",
    )
