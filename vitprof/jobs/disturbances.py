"""What disturbed a run: other jobs at the same time, and times in which the job could not run."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.steady import STOP_COLUMNS, STOPS, end_s, in_stops, plain_stops, stop_sentence
from vitprof.jobs.scheduling import MachineLock, device_of, name_of, running_beside
from vitprof.recording.columns import Stop
from vitprof.store import RunStore
from vitprof.store.chunks import joined, n_rows
from vitprof.telemetry.sampler import Telemetry

N_BESIDE = "n_beside"
"""The name of the fact that holds the number of other jobs at the same time."""
SHARED = "ran at the same time: they shared CPU and disk, so loading may be slower here than in a run alone"
LOOK_EVERY_S = 3.0
"""How often (s) to look for other jobs: a look takes 2.3 ms of CPU while a job computes. It also finds the jobs that
began and ended since the last one."""
LOOK_BACK = 20_000
"""The number of latest steps to search: no step ends during a stop, and even the fastest job makes fewer between the
end of a stop and the search."""
SURE_AFTER_S = 1.0
"""Once a step has arrived that ended this long (s) after a stop, all steps that the stop fell into have arrived."""


class ConcurrentJobs:
    """The other jobs on this machine during a run. Call `look` several times, and once more at the run's end."""

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store, self._run_id = store, run_id
        self._lines: dict[object, str] = {}
        self._looked_s = time.perf_counter()

    @property
    def notices(self) -> list[str]:
        return list(self._lines.values())

    def look(self, lock: MachineLock) -> None:
        """Notes the runs that are running or ran since the last look, and other stores' jobs. Raises `StoreError`."""
        now = time.perf_counter()
        running = running_beside(self._store, self._run_id)
        ended = self._store.ended_since(self._run_id, self._looked_s)
        self._looked_s = now  # only here: after a look that raised, the next one covers its time too
        for run in (*running, *ended):
            self._lines.setdefault(run.id, f"run {run.id} on {device_of(run)} ({run.name}) {SHARED}")
        for other in lock.others():
            if other.store != lock.holder.store:
                line = f"{name_of(other)} on {other.device} ({other.who}) {SHARED}"
                self._lines.setdefault((other.store, other.run, other.since_s), line)


class SuspendedSteps:
    """The stops of a run, and the steps that are left out because of them."""

    def __init__(self) -> None:
        self._recent: list[Series] = []
        self.settled = 0
        """The number of stops whose steps were found."""
        self.notices: list[str] = []

    def add(self, steps: Series) -> None:
        """Adds finished steps, and drops those that are too old to be searched."""
        self._recent.append({name: steps[name] for name in STOP_COLUMNS if name in steps})
        while len(self._recent) > 1 and sum(map(n_rows, self._recent[1:])) >= LOOK_BACK:
            del self._recent[0]

    def look(self, stops: Sequence[Stop], *, last: bool) -> list[int]:
        """Returns the numbers of the steps that stops fell into which are not settled yet."""
        if len(stops) == self.settled:
            return []
        steps = joined("steps", self._recent, STOP_COLUMNS)
        ends = end_s(steps)
        seen_s = float(np.nanmax(ends)) if np.isfinite(ends).any() else -np.inf
        numbers: list[int] = []
        for stop in stops[self.settled :]:
            if not last and seen_s < stop.t_end_s + SURE_AFTER_S:
                break
            hit = in_stops(steps, [stop])
            numbers += [int(step) for step in np.unique(steps["step"][hit])]
            if hit.any() or stop.kind in ("stopped", "asleep"):
                self.notices.append(stop_sentence(stop, int(hit.sum())))
            self.settled += 1
        return numbers


class Disturbances:
    """The disturbances of a run, while it goes on."""

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store, self._run_id = store, run_id
        self._concurrent, self._suspended = ConcurrentJobs(store, run_id), SuspendedSteps()
        self._n_beside = 0
        self._earlier: list[Stop] = []
        """Stops that an earlier telemetry found, of a job that began again after its "end"."""
        self._to_mark: deque[int] = deque()
        """Numbers of suspended steps that the store may not have marked yet."""
        self._looked_s = -math.inf
        self.lock: MachineLock | None = None

    @property
    def notices(self) -> list[str]:
        """Returns what the user should know, one line for each disturbance."""
        unseen = [self.lock.not_seen] if self.lock is not None and self.lock.not_seen else []
        return [*self._concurrent.notices, *self._suspended.notices, *unseen]

    def look_at_store(self) -> None:
        """Looks for other jobs, and marks stored steps as suspended; in the writing thread. Raises `StoreError`."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._look_for_others()
        numbers = [self._to_mark.popleft() for _ in range(len(self._to_mark))]
        self._store.mark_warmup(self._run_id, numbers)  # those that are not stored yet are marked when the run ends

    def look_again(self) -> None:
        """Looks for other jobs once more when the job has ended, and stores what is new. Raises `StoreError`."""
        self._look_for_others()
        lines = self._concurrent.notices
        if len(lines) == self._n_beside:
            return
        run = self._store.run(self._run_id)
        new = [line for line in lines if line not in run.notices]
        facts = run.facts | {N_BESIDE: len(lines)}
        self._store.update_run(self._run_id, notices=[*run.notices, *new], facts=facts)

    def _look_for_others(self) -> None:
        if (lock := self.lock) is not None:
            self._concurrent.look(lock)
            self._looked_s = time.monotonic()

    def new_telemetry(self, before: Telemetry | None) -> None:
        """Keeps the stops that the telemetry `before` found, as a new one takes its place."""
        self._earlier += before.stops if before is not None else []

    def look(self, new: Sequence[Series], telemetry: Telemetry | None, *, last: bool) -> dict[str, Any]:
        """Returns the facts that have changed. `new` are the newest steps; `last`: no more will come."""
        facts: dict[str, Any] = {}
        if (n := len(self._concurrent.notices)) > self._n_beside:
            self._n_beside = facts[N_BESIDE] = n
        for steps in new:
            self._suspended.add(steps)
        stops = self._earlier + (telemetry.stops if telemetry is not None else [])
        settled = self._suspended.settled
        self._to_mark.extend(self._suspended.look(stops, last=last))
        if self._suspended.settled > settled:
            facts[STOPS] = plain_stops(stops[: self._suspended.settled])
        return facts
