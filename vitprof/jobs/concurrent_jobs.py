"""Which other jobs ran at the same time as a run: both are marked, even if one of them notices only later."""

from __future__ import annotations

import time

from vitprof.jobs.machine_lock import store_mark
from vitprof.jobs.scheduling import device_of, name_of, running_beside
from vitprof.jobs.tickets import Ticket
from vitprof.store import RunStore

SHARED = "ran at the same time: they shared CPU and disk, so loading may be slower here than in a run alone"


class Beside:
    """The other jobs on this machine during a run. Call `look` several times, and once more at the run's end."""

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store, self._run_id = store, run_id
        self._mark = store_mark(store.url)
        self._seen: set[object] = set()
        self._looked_s = time.perf_counter()
        self.notices: list[str] = []
        """One line for each of those jobs."""

    @property
    def n(self) -> int:
        """Returns the number of other jobs seen so far."""
        return len(self._seen)

    def look(self, ticket: Ticket) -> None:
        """Notes the runs that are running now, those that began and ended since the last look, and the jobs of other
        stores. `ticket` is the run's own. Raises `StoreError`.
        """
        now = time.perf_counter()
        running = running_beside(self._store, self._run_id)
        ended = self._store.ended_since(self._run_id, self._looked_s)
        self._looked_s = now  # only here: after a look that raised, the next one covers its time too
        for run in (*running, *ended):
            self._note(run.id, f"run {run.id} on {device_of(run)} ({run.name}) {SHARED}")
        for other in ticket.others():
            holder = other.holder
            if not other.running or (holder is not None and (holder.store, holder.run) == (self._mark, self._run_id)):
                continue
            if holder is not None and holder.store == self._mark:
                if not other.alive:  # its program was killed; the store lists the others, or soon will
                    self._note(holder.run, f"{name_of(other, self._mark)} on {holder.device} ({other.who}) {SHARED}")
            else:
                device = "" if holder is None else f" on {holder.device}"
                self._note(other.path.name, f"{name_of(other, self._mark)}{device} ({other.who}) {SHARED}")

    def _note(self, other: object, line: str) -> None:
        if other not in self._seen:
            self._seen.add(other)
            self.notices.append(line)
