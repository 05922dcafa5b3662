"""A run that has several ranks, on one node or on several: what is made of them once it has ended."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.stragglers import NAMES, ranks_of
from vitprof.analysis.timing.steady import (
    STOP_COLUMNS,
    in_stops,
    stop_sentence,
    stops_of,
    stops_of_rank,
    while_steady,
)
from vitprof.jobs.restarts import Start, StepsOfStarts, restarts_in_words
from vitprof.recording.columns import Stop
from vitprof.store import RunStore
from vitprof.store.nodes import is_part, join_nodes
from vitprof.store.stored_run import StoredRun
from vitprof.telemetry.rank_clocks import RankClocks

OF_A_TASK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables with this command's rank, where a launcher starts one for each rank."""
ENDED_WITHIN_S = 5.0
"""How long (s) a process that a launcher started in place of another waits for what that sent last. The
launcher has ended that one before."""


@dataclass(frozen=True, slots=True)
class Place:
    """As what a process is recorded."""

    rank: int
    start: int
    """Which start of the training it is of, from 0; more where the launcher started it again."""


class Places:
    """The processes of a command that are recorded, by their rank.

    The run is that of the first process of rank 0 that describes its training; on a node that has
    not rank 0, of the first one there. Of the other ranks only the steps are recorded. Where the
    launcher starts the training again, the new processes have the places of those before.
    """

    def __init__(self, facts: Callable[[dict[str, Any]], object]) -> None:
        """`facts` is called with what is found out about the ranks' GPUs."""
        self.first = -1
        """The rank of the process whose run it is; -1 until it is found."""
        self.begun_by: Place | None = None
        """The process whose environment the run has: that rank's in the first start that trained it."""
        self.steps = StepsOfStarts()
        """The steps of all starts."""
        self._starts = list[Start]()
        """Those that were recorded, in order."""
        self._ranks = set[Place]()
        self._by_local_rank = dict[Any, int]()
        """The ranks of the first start: another one may number the nodes anew."""
        self._open = Counter[int]()
        """The processes of each start that may still send something."""
        self._n_unread = 0
        self._changed = threading.Condition()
        values = (os.environ.get(name, "") for name in OF_A_TASK)
        self._own_rank = next((int(rank) for rank in values if rank.isdecimal()), 0)
        """The rank of this command, where a launcher starts a command for each rank."""
        self._clocks = RankClocks(lambda mhz: facts({"clocks": mhz}))
        self.close = self._clocks.close

    @property
    def has_first(self) -> bool:
        """Returns whether the process that is recorded was found."""
        return self.first >= 0

    @property
    def n_restarts(self) -> int:
        """Returns how often the launcher started the training again, as far as that was seen."""
        if not self._starts:
            return 0
        return max(self._starts[-1].restarts, len(self._starts) - 1)

    def place(
        self, described: Mapping[str, Any], process: Mapping[str, Any] | None = None
    ) -> Place | None:
        """Returns as what a process is recorded, by its environment and what it said as it connected;
        None: it is not.

        Waits for the end of those before it, where the launcher started it in place of them.
        """
        rank = int(described.get("rank") or 0)
        local_rank = described.get("local_rank")
        leads = rank in (0, self._own_rank) or local_rank == 0
        with self._changed:
            start = self._start_of(Start.of(process or {}))
            if start:
                rank = self._by_local_rank.get(local_rank, rank)
            place = None if start is None else Place(rank, start)
            # another training, or one that was started by hand once more
            is_other = rank == 0 and self.has_first and not start
            if place is None or place in self._ranks or is_other:
                self._n_unread += leads
                return None
            if leads and not self.has_first:
                self.first = rank
                self.begun_by = place
            self._ranks.add(place)
            self._open[place.start] += 1
            if not start:
                self._by_local_rank[local_rank] = rank
                if uuid := described.get("gpu_uuid"):
                    self._clocks.add(rank, uuid)
            return place

    def _start_of(self, start: Start) -> int | None:
        """Returns the number of a start; None for one beside the training that is recorded."""
        if not self._starts:
            self._starts.append(start)
            return 0
        if not start.follows(self._starts[-1]):
            known = (n for n, each in enumerate(self._starts) if each.is_same(start))
            return next(known, len(self._starts) - 1)
        if not self._changed.wait_for(lambda: not self._open.total(), ENDED_WITHIN_S):
            return None
        # another process of the same start may have come here first
        if start.follows(self._starts[-1]):
            self._starts.append(start)
            self.steps.begin(start.meeting)
        return len(self._starts) - 1

    def leave(self, place: Place) -> bool:
        """Notes that a process sends nothing more. Returns whether that ends the run, unless its launcher
        starts it again."""
        with self._changed:
            self._open[place.start] -= 1
            self._changed.notify_all()
            return place == Place(self.first, len(self._starts) - 1)

    def unrecorded(self) -> str:
        """Returns a line on the processes that trained and are not recorded; "" for none."""
        n = self._n_unread
        if not n:
            return ""
        others = "another process" if n == 1 else f"{n} other processes"
        return f"{others} of the command trained, too: this is the run of the first one"

    def restarted(self) -> str:
        """Returns a line on a training that its launcher started again; "" for none."""
        return restarts_in_words(self.n_restarts, self.steps.restarted_at)


Settle = Callable[[RunStore, int, float, float], dict[str, Any]]
"""`finalise.settle`."""


def of_ranks(store: RunStore, run: StoredRun, steps: Series, telemetry: Series) -> dict[str, Any]:
    """Returns the facts of a run that comparing its ranks gives; none where it is of one process."""
    if run.environment.get("world_size", 1) < 2:
        return {}
    own_rank = int(run.environment.get("rank") or 0)
    stops = stops_of(run.facts)
    names = list(NAMES)
    if stops:
        names += [name for name in STOP_COLUMNS if name not in NAMES]
    series = store.steps_of_ranks(run.id, names=names)
    series[own_rank] = series.pop(0)
    for rank, of_rank in series.items() if stops else ():
        hit = in_stops(of_rank, stops_of_rank(stops, rank, own_rank), series)
        series[rank] = {**of_rank, "warmup": np.where(hit, 1.0, of_rank["warmup"])}
    cores = others_cpu(steps, telemetry, run.environment).cores
    disk = mean(telemetry["disk_read_bytes_per_s"][while_steady(steps, telemetry["t_s"])]) / 1e6
    measured = {"others_cores": cores, "disk_mb_per_s": disk}
    facts: dict[str, Any] = {
        name: float(value) if np.isfinite(value) else None for name, value in measured.items()
    }
    if run.environment.get("job"):
        # 0 once the nodes have been joined is a fact, too: before it was more
        facts["missing_ranks"] = max(0, run.environment["world_size"] - len(series))
    ranks = ranks_of(series, run.facts)
    if ranks is not None:
        facts["ranks"] = ranks.to_dict()
    return facts


def _left_out(store: RunStore, run: StoredRun, stops: Sequence[Stop]) -> list[str]:
    """Returns a line on each stop of another node that the run has steps of."""
    if not stops:
        return []
    of_ranks = store.steps_of_ranks(run.id, names=STOP_COLUMNS)
    steps = of_ranks[0]
    hits = [(stop, int(in_stops(steps, [stop], of_ranks).sum())) for stop in stops]
    return [stop_sentence(stop, n) for stop, n in hits if n or stop.kind == "stopped"]


def join(
    store: RunStore, run: StoredRun, settle: Settle, *, unsure: bool = True
) -> tuple[StoredRun, str]:
    """Makes one run of those of a job's nodes (`store.nodes`), as far as they have ended, and judges
    it again.

    `unsure`: whether runs are joined that no id says so of. Returns the run that this one's ranks are
    in now, and a line about it; "" where it is as it was. Raises `StoreError`, also where another
    node's program has just done so.
    """
    joined = join_nodes(store, run.id, unsure=unsure)
    if joined is None:
        line = ""
        if is_part(run):
            line = "rank 0 was trained elsewhere: these ranks come into its run once both have ended, in one store"
        return run, line
    whole = store.run(joined.run_id)
    if whole.t_origin_s is not None:
        took_s = whole.summary.wall_s if whole.summary else 0.0
        store.update_run(
            whole.id, **settle(store, whole.id, whole.t_origin_s, whole.t_origin_s + took_s)
        )
    whole = store.run(whole.id)
    commands = formats.count(len(whole.facts["nodes"]), "command")
    line = f"run {whole.id} has the ranks of {commands}"
    lines = _left_out(store, whole, joined.stops)
    if joined.unsure:
        reasons = "; ".join(dict.fromkeys(match.reasons for match in joined.unsure))
        doubt = f"that they are of one job is not sure: {reasons}, but no id says so"
        line = f"{line}; {doubt}"
        lines.append(f"it has the ranks of {commands}; {doubt}")
    if lines:
        store.update_run(whole.id, notices=[*whole.notices, *lines])
        whole = store.run(whole.id)
    return whole, line
