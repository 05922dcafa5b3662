"""What disturbed a run: other jobs at the same time, and times in which the job could not run."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from vitprof.analysis.timing.suspensions import STOPS, plain_stops
from vitprof.jobs.concurrent_jobs import Beside
from vitprof.jobs.suspensions import LeftOut
from vitprof.jobs.tickets import Ticket
from vitprof.measure.wire import Steps
from vitprof.recording.columns import Stop
from vitprof.store import RunStore
from vitprof.telemetry import Telemetry

N_BESIDE = "n_beside"
"""The name of the fact that holds the number of other jobs at the same time."""
LOOK_EVERY_S = 3.0
"""How often (s) to look for other jobs: a look takes 2.3 ms of CPU while a job computes. It also finds the jobs that
began and ended since the last one."""


class Disturbances:
    """The disturbances of a run, while it goes on. The recorder's thread calls `look`, the writing thread
    `look_at_store`.
    """

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store, self._run_id = store, run_id
        self._beside, self._left_out = Beside(store, run_id), LeftOut()
        self._n_beside = 0
        self._earlier: list[Stop] = []
        """Stops that an earlier telemetry found, of a job that began again after its "end"."""
        self._to_mark: deque[int] = deque()
        """Numbers of steps to leave out that the store may not have marked yet."""
        self._looked_s = -math.inf
        """When other jobs were looked for."""
        self.ticket: Ticket | None = None
        """The run's ticket while it goes on."""

    @property
    def notices(self) -> list[str]:
        """Returns what the user should know, one line for each disturbance."""
        unseen = [self.ticket.why_not] if self.ticket is not None and self.ticket.why_not else []
        return [*self._beside.notices, *self._left_out.notices, *unseen]

    def look_at_store(self) -> None:
        """Looks for other jobs, and marks stored steps to leave out; in the writing thread. Raises `StoreError`."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._look_for_others()
        numbers = [self._to_mark.popleft() for _ in range(len(self._to_mark))]
        self._store.mark_warmup(self._run_id, numbers)  # those that are not stored yet are marked when the run ends

    def look_again(self) -> None:
        """Looks for other jobs once more when the job has ended, and stores what is new; in the writing thread, when
        the store has all the rest. Raises `StoreError`.
        """
        self._look_for_others()
        if self._beside.n == self._n_beside:
            return
        run = self._store.run(self._run_id)
        new = [line for line in self._beside.notices if line not in run.notices]
        facts = run.facts | {N_BESIDE: self._beside.n}
        self._store.update_run(self._run_id, notices=[*run.notices, *new], facts=facts)

    def _look_for_others(self) -> None:
        if (ticket := self.ticket) is not None:
            self._beside.look(ticket)
            self._looked_s = time.monotonic()

    def new_telemetry(self, before: Telemetry | None) -> None:
        """Keeps the stops that the telemetry `before` found, as a new one takes its place."""
        self._earlier += before.stops if before is not None else []

    def look(self, rows: list[Steps], telemetry: Telemetry | None, *, last: bool) -> dict[str, Any]:
        """Returns the facts that have changed. `rows` are the newest steps; `last`: no more will come."""
        facts: dict[str, Any] = {}
        if (n := self._beside.n) > self._n_beside:
            self._n_beside = facts[N_BESIDE] = n
        for matrix in rows:
            self._left_out.add(matrix)
        stops = self._earlier + (telemetry.stops if telemetry is not None else [])
        settled = self._left_out.settled
        self._to_mark.extend(self._left_out.look(stops, last=last))
        if self._left_out.settled > settled:
            facts[STOPS] = plain_stops(stops[: self._left_out.settled])
        return facts
