"""Takes what a job reports to the run store. Neither the job nor its recorder ever waits for the store.

A thread writes. A store that does not take the data (locked, full, restarted) is away: from then on all data go into a
file (`spool`), and the thread tries again until the store has them. What no file can take waits in memory. Both are
bounded: steps beyond that are dropped and counted. The run has a notice of it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.jobs.batches import Batch, Matrix, read_batch
from vitprof.jobs.outages import Away, Ending, Outages
from vitprof.jobs.recovery import header_of, places
from vitprof.jobs.spool import STEPS, TELEMETRY, VALUES, NoRoom, Spool, values_frame
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun

RETRY_S = 1.0
"""Time (s) between two tries to reach a store that is away."""
MEMORY_BYTES = 8 << 20
"""Most bytes of steps and telemetry that wait in memory, for the current write, or where no file can take them."""
LEAVE_S = 6.0
"""How long (s) the program's end waits for the current write: SQLite waits 5 s for a lock."""


class Outbox:
    """A buffer that one thread fills and another writes to the store; that thread runs while there is work for it."""

    def __init__(
        self,
        store: RunStore,
        run: StoredRun,
        *,
        look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` is called in the writing thread before each write, unless the store is away; it may use the store."""
        self._store, self._run, self._look, self._clock = store, run, look, clock
        self._changed = threading.Condition()
        self._waiting = Batch()
        self._due = False
        """Whether there is something to write, or time to look."""
        self._in_flight: Batch | None = None
        self._began_s = 0.0
        """When the last write began, on `clock`."""
        self._ending: Ending | None = None
        self._away: Away | None = None
        self._outages = Outages()
        self._spool: Spool | None = None
        self._n_samples = 0
        self._notices: list[str] = []
        """The job's notices, as they were last added."""
        self._told: list[str] = []
        """The outbox's own notices."""
        self._leaving = False
        self._thread: threading.Thread | None = None

    # the recorder's thread

    def add(self, steps: Sequence[Matrix] = (), samples: Iterable[Sequence[float]] = (), **values: Any) -> None:
        """Takes finished steps, (n, len(STEP_COLUMNS)) each, telemetry samples and columns of the run. Never blocks."""
        rows = np.array(list(samples), dtype=np.float64).reshape(-1, len(TELEMETRY_COLUMNS))
        with self._changed:
            batch = Batch(list(steps))
            if len(rows):
                numbers = np.arange(self._n_samples, self._n_samples + len(rows), dtype=np.float64)
                self._n_samples += len(rows)
                batch.samples.append(np.column_stack([numbers, rows]))
            if "notices" in values:
                self._notices = list(values["notices"])
                values["notices"] = self._notices + self._told
            if "status" in values:
                self._ending = None  # the run goes on
            batch.values = values
            if self._away is not None:
                self._put_away(batch)
            else:
                self._due = True
                self._waiting.merge(batch)
                if self._in_flight is not None and self._waiting.n_bytes > MEMORY_BYTES:
                    self._go_away("it does not answer")
            self._start()

    def finish(self, settle: Callable[[], dict[str, Any]], *, t_end_s: float, **values: Any) -> None:
        """Takes the last columns of a run that has ended. They are written once the store has all the rest, with the
        columns that `settle` then returns; it is called in the writing thread. `t_end_s`, the run's end on its clock,
        lets another program do that instead.
        """
        with self._changed:
            self._ending = Ending(settle, values, t_end_s)
            if self._away is not None:
                self._spool_ending()
            self._start()

    @property
    def why_away(self) -> str:
        """Returns why the store cannot be written just now; "" where it can."""
        with self._changed:
            return "" if self._away is None else self._away.why

    def wait(self, within_s: float, *, also_away: bool = False) -> bool:
        """Waits until everything is written, for at most `within_s` seconds; returns whether it is. `also_away`: also
        returns where the store is away.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_written() or (also_away and self._away is not None), within_s)
            return self._is_written()

    def leave(self) -> str:
        """Gives up waiting for the store, and leaves in files what it could not take, for the next program. Returns a
        line that says what became of the data; "" where the store has them all.
        """
        said = ""
        with self._changed:
            thread, self._leaving = self._thread, True
            if self._away is None and not self._is_written():
                self._go_away("it did not answer in time")
            if self._away is not None:
                said = self._leave_files(self._away)
            self._changed.notify_all()
        if thread is not None:
            thread.join(LEAVE_S)
        return said

    def _leave_files(self, away: Away) -> str:
        assert self._spool is not None
        kept, away.kept = away.kept, Batch()
        self._put_away(kept)
        self._tell(away, "what was measured meanwhile was taken in later")
        self._spooled(VALUES, values_frame({"notices": self._notices + self._told}))
        names = ", ".join(str(path) for path in self._spool.paths)
        self._spool.leave()
        if not names:
            return f"the run store is away ({away.why}), and {self._outages.why_lost or 'no file could be written'}"
        return f"the run store is away ({away.why}): what it could not take is in {names} until vitprof starts again"

    def _is_written(self) -> bool:
        return not self._due and self._in_flight is None and self._away is None and self._ending is None

    def _start(self) -> None:
        if self._thread is None and not self._leaving:
            name = f"vitprof-writer-{self._run.id}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # while the store is away; the lock is held

    def _go_away(self, why: str) -> None:
        self._away = Away(self._began_s, why)
        self._spool = Spool(header_of(self._store, self._run, why), places(self._store))
        if self._in_flight is not None:  # the store may have it after all: what is there is not added again
            self._put_away(self._in_flight)
        waiting, self._waiting, self._due = self._waiting, Batch(), False
        self._put_away(waiting)
        self._spool_ending()
        self._changed.notify_all()

    def _put_away(self, batch: Batch) -> None:
        away, lost = self._away, self._outages
        assert away is not None
        away.values |= batch.values
        if batch.values:
            self._spooled(VALUES, values_frame(batch.values))
        left = Batch(
            [rows for rows in batch.steps if not self._spooled(STEPS, rows.tobytes())],
            [rows for rows in batch.samples if not self._spooled(TELEMETRY, rows.tobytes())],
        )
        if not self._leaving and away.kept.n_bytes + left.n_bytes <= MEMORY_BYTES:
            away.kept.merge(left)
        else:
            lost.lost_steps += left.n_steps
            lost.lost_samples += left.n_samples

    def _spooled(self, kind: bytes, payload: bytes) -> bool:
        assert self._spool is not None
        try:
            self._spool.append(kind, payload)
        except NoRoom as error:
            self._outages.why_lost = str(error)
            return False
        return True

    def _spool_ending(self) -> None:
        if self._ending is not None:
            self._spooled(VALUES, values_frame({**self._ending.values, "t_end_s": self._ending.t_end_s}))

    def _tell(self, away: Away, what_became: str) -> None:
        self._outages.n += 1
        self._outages.seconds += self._clock() - away.since_s
        self._outages.why = away.why
        self._told = self._outages.notices(what_became, for_good=self._leaving)

    # the writing thread

    def _work(self) -> None:
        while self._has_work():
            if self._away is None:
                self._began_s = self._clock()
            at_end = not (self._away or self._due)
            try:
                if self._away is not None:
                    self._drain()
                elif self._due:
                    self._write()
                else:
                    self._end()
            except Exception as error:
                with self._changed:
                    if isinstance(error, StoreAwayError) or (isinstance(error, StoreError) and not at_end):
                        self._fails(why_of(error))
                    else:
                        self._cannot_settle(error)
                    self._changed.notify_all()

    def _cannot_settle(self, error: Exception) -> None:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        self._ending, self._due = None, True
        self._waiting.values |= {"status": "failed", "stage": "", "error": one_line(error)}

    def _fails(self, why: str) -> None:
        if self._away is None:
            self._go_away(why)
        else:
            self._away.why = why
        self._in_flight = None

    def _has_work(self) -> bool:
        """Returns whether there is work, and waits `RETRY_S` first while the store is away; False ends the thread."""
        with self._changed:
            if self._away is not None:
                self._changed.wait_for(lambda: self._leaving, RETRY_S)
            if self._leaving or self._is_written():
                self._thread = None
                self._changed.notify_all()
                return False
            return True

    def _write(self) -> None:
        with self._changed:
            batch, self._waiting, self._due = self._waiting, Batch(), False
            self._in_flight = batch
        self._look()
        batch.write_rows(self._store, self._run.id)
        if batch.values:
            self._store.update_run(self._run.id, **batch.values)
        with self._changed:
            self._in_flight = None
            self._changed.notify_all()

    def _end(self) -> None:
        ending = self._ending
        if ending is None:
            return
        values = {**ending.values, **ending.settle()}
        self._store.update_run(self._run.id, **values)
        with self._changed:
            if self._ending is ending:
                self._ending = None
            self._changed.notify_all()

    def _drain(self) -> None:
        """Writes everything that waits; the store is then no longer away."""
        while True:
            with self._changed:
                away = self._away
                if away is None or self._leaving:
                    return
                away.chunk = away.chunk or self._next_chunk(away)
                if not away.chunk:
                    self._come_back(away)
                    return
            away.chunk.write_rows(self._store, self._run.id, again=True)
            away.chunk = None

    def _next_chunk(self, away: Away) -> Batch:
        chunk = Batch()
        if self._spool is not None:
            try:
                chunk = read_batch(self._spool.unread())
            except (ValueError, OSError) as error:
                self._notices.append(f"a part of what waited for the run store is lost: {error}")
        chunk.values.clear()  # `away.values` has newer ones
        if not chunk:
            chunk, away.kept = away.kept, chunk
        return chunk

    def _come_back(self, away: Away) -> None:
        self._tell(away, "what was measured meanwhile waited and is complete")
        self._waiting.values, self._due = away.values, True
        if self._told:
            self._waiting.values["notices"] = self._notices + self._told
        if self._spool is not None:
            self._spool.delete()
        self._away = self._spool = None
        self._changed.notify_all()


def why_of(error: StoreError) -> str:
    """Returns why the store failed, in a few words."""
    return error.why if isinstance(error, StoreAwayError) else one_line(error)
