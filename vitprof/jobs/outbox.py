"""Brings what a job reports to the run store. Neither the job nor its recorder ever waits for the store.

A thread writes. A store that does not take the data (locked, full, restarted) is unavailable: from then on all data go
into a file (`spool`), and the thread tries again until the store has them. What no file can take waits in memory. Both
are bounded: steps beyond that are dropped and counted. The run has a notice of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.jobs.spool import VALUES, Entries, NoRoom, Spool, header_of, places_of, values_entry
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import Chunk, chunks_of, columns_of, joined

RETRY_S = 1.0
"""Time (s) between two tries to reach a store that is unavailable."""
MEMORY_BYTES = 8 << 20
"""Most bytes of steps and telemetry that wait in memory, for the current write, or where no file can take them."""
LEAVE_S = 6.0
"""How long (s) the program's end waits for the current write: SQLite waits 5 s for a lock."""
COMPACT_EVERY = 64
"""The number of writes after which the store is asked to merge what has become many chunks."""
NOTICED_FROM_S = 1.0
"""A store that was unavailable for less than this (s), and lost nothing, is not worth a notice."""


class Ending(NamedTuple):
    """The end of a run that is not in the store yet."""

    settle: Callable[[], dict[str, Any]]
    values: dict[str, Any]
    t_end_s: float


class Write(NamedTuple):
    """What is being written to the store."""

    batch: Entries
    began_s: float


@dataclass
class Outages:
    """All times in which the store could not be written, summed up for the notice."""

    n: int = 0
    seconds: float = 0.0
    why: str = ""
    lost: dict[str, int] = field(default_factory=lambda: {"steps": 0, "telemetry": 0})
    """Rows that nothing had room for, by kind."""
    why_lost: str = ""
    notices: list[str] = field(default_factory=list)
    """The notice for the user; empty where there is nothing to say."""

    def add(self, seconds: float, outcome: str, *, for_good: bool) -> None:
        """Adds an outage that has ended. A short one that lost nothing is worth no notice, unless it is `for_good`.

        `outcome`: what became of the data, unless some were lost.
        """
        self.n += 1
        self.seconds += seconds
        words = {"steps": "step", "telemetry": "telemetry sample"}
        lost = [f"{n:,} {words[kind]}{'' if n == 1 else 's'}" for kind, n in self.lost.items() if n]
        if lost:
            outcome = f"{' and '.join(lost)} of that time are lost: {self.why_lost}"
        elif self.seconds < NOTICED_FROM_S and not for_good:
            return
        times = "" if self.n == 1 else f" {self.n} times, in all"
        took = formats.seconds(self.seconds)
        self.notices = [f"the run store could not be written{times} for {took} ({self.why}); {outcome}"]


class Backlog:
    """What waits while the store is unavailable: in files, and in memory what no file can take."""

    def __init__(self, spool: Spool, outages: Outages, since_s: float) -> None:
        self.spool, self.outages, self.since_s = spool, outages, since_s
        self._kept: list[Chunk] = []
        self._from_files: list[Chunk] = []

    def put(self, chunks: Iterable[Chunk], values: dict[str, Any] | None = None, *, keep: bool = True) -> None:
        """Adds columns of the run and chunks. Without `keep`, chunks that no file can take are lost."""
        if values:
            self._into_file(VALUES, values_entry(values))
        for chunk in chunks:
            if self._into_file(chunk.kind, chunk.data):
                continue
            if keep and _n_bytes(self._kept) + len(chunk.data) <= MEMORY_BYTES:
                self._kept.append(chunk)
            else:
                self.outages.lost[chunk.kind] += chunk.rows

    def _into_file(self, kind: str, payload: bytes) -> bool:
        try:
            self.spool.append(kind, payload)
        except NoRoom as error:
            self.outages.why_lost = str(error)
            return False
        return True

    def next(self) -> list[Chunk]:
        """Returns the next chunks to write, the same ones until `written`; none at the end. Raises `ValueError` where a
        file is damaged: what was read before is not lost.
        """
        while not self._from_files and (entries := self.spool.read()):
            self._from_files = entries.chunks  # the outbox has newer values
        return self._from_files or list(self._kept)

    def written(self, chunks: Sequence[Chunk]) -> None:
        """Drops the chunks that `next` returned."""
        if self._from_files:
            self._from_files = []
        else:
            del self._kept[: len(chunks)]

    def leave(self) -> str:
        """Brings what is in memory into files too, for the next program, and returns their names."""
        kept, self._kept = self._kept, []
        self.put(kept, keep=False)
        return ", ".join(str(file.path) for file in self.spool.files)


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
        """`look` is called in the writing thread before each write, unless the store is unavailable; it may use it."""
        self._store, self._run, self._look, self._clock = store, run, look, clock
        self._changed = threading.Condition()
        self._waiting = Entries()
        """What the next write brings to the store; during an outage the newest values of the run's columns alone."""
        self._due = False
        """Whether there is something to write, or time to look."""
        self._write: Write | None = None
        self._n_writes = self._n_samples = 0
        self._ending: Ending | None = None
        self._backlog: Backlog | None = None
        """What waits in this outage; None while the store takes what is written."""
        self._outages = Outages()
        self._notices: list[str] = []
        """The job's notices, as they were last added."""
        self._leaving = False
        self._thread: threading.Thread | None = None

    # the recorder's thread

    def add(self, steps: Sequence[Series] = (), samples: Iterable[Sequence[float]] = (), **values: Any) -> None:
        """Takes finished steps, telemetry samples and columns of the run. Never blocks."""
        chunks = list(chunks_of("steps", joined("steps", steps)))
        telemetry = columns_of(samples, TELEMETRY_COLUMNS)
        with self._changed:
            if n := len(telemetry["t_s"]):
                numbers = np.arange(self._n_samples, self._n_samples + n, dtype=np.float64)
                self._n_samples += n
                chunks += chunks_of("telemetry", {"seq": numbers, **telemetry})
            if "notices" in values:
                self._notices = list(values["notices"])
                values["notices"] = self._notices + self._outages.notices
            if "status" in values:
                self._ending = None  # the run goes on
            self._waiting.values |= values
            if self._backlog is not None:
                self._backlog.put(chunks, values)
            else:
                self._due = True
                self._waiting.chunks += chunks
                if self._write is not None and _n_bytes(self._waiting.chunks) > MEMORY_BYTES:
                    self._begin_outage("it does not answer")
            self._start()

    def finish(self, settle: Callable[[], dict[str, Any]], *, t_end_s: float, **values: Any) -> None:
        """Takes the last columns of a run that has ended. They are written once the store has all the rest, with the
        columns that `settle` then returns; it is called in the writing thread. `t_end_s`, the run's end on its clock,
        lets another program do that instead.
        """
        with self._changed:
            self._ending = Ending(settle, values, t_end_s)
            if self._backlog is not None:
                self._backlog.put([], {**values, "t_end_s": t_end_s})
            self._start()

    @property
    def unavailable(self) -> str:
        """Returns why the store cannot be written just now; "" where it can."""
        with self._changed:
            return "" if self._backlog is None else self._outages.why

    def wait(self, within_s: float, *, also_unavailable: bool = False) -> bool:
        """Waits until everything is written, for at most `within_s` seconds; returns whether it is. `also_unavailable`:
        also returns where the store is unavailable.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_written() or (also_unavailable and self._backlog is not None), within_s
            )
            return self._is_written()

    def leave(self) -> str:
        """Gives up waiting for the store, and leaves in files what it could not take, for the next program. Returns a
        line that says what became of the data; "" where the store has them all.
        """
        line = ""
        with self._changed:
            thread, self._leaving = self._thread, True
            if self._backlog is None and not self._is_written():
                self._begin_outage("it did not answer in time")
            if (backlog := self._backlog) is not None:
                names = backlog.leave()
                self._end_outage(backlog, "what was measured meanwhile was imported later")
                backlog.put([], {"notices": self._notices + self._outages.notices})
                backlog.spool.leave()
                line = f"what it could not take is in {names} until vitprof starts again"
                line = f"the run store is unavailable ({self._outages.why})" + (
                    f": {line}" if names else f", and {self._outages.why_lost}"
                )
            self._changed.notify_all()
        if thread is not None:
            thread.join(LEAVE_S)
        return line

    def _is_written(self) -> bool:
        return not self._due and self._write is None and self._backlog is None and self._ending is None

    def _start(self) -> None:
        if self._thread is None and not self._leaving:
            name = f"vitprof-writer-{self._run.id}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _begin_outage(self, why: str) -> None:
        """Begins an outage with the last write, which the store may have after all; the lock is held."""
        failed, began_s = self._write or Write(Entries(), self._clock())
        chunks, values = [*failed.chunks, *self._waiting.chunks], failed.values | self._waiting.values
        self._waiting, self._due, self._outages.why = Entries(values=values), False, why
        spool = Spool(header_of(self._store, self._run, why), places_of(self._store))
        self._backlog = Backlog(spool, self._outages, began_s)
        self._backlog.put(chunks, values)
        if self._ending is not None:
            self._backlog.put([], {**self._ending.values, "t_end_s": self._ending.t_end_s})
        self._changed.notify_all()

    def _end_outage(self, backlog: Backlog, outcome: str) -> None:
        self._outages.add(self._clock() - backlog.since_s, outcome, for_good=self._leaving)

    # the writing thread

    def _work(self) -> None:
        while self._has_work():
            ending = None if self._backlog is not None or self._due else self._ending
            try:
                if self._backlog is not None:
                    self._drain()
                elif ending is not None:
                    self._end(ending)
                else:
                    self._write_next()
            except Exception as error:
                with self._changed:
                    if isinstance(error, StoreAwayError) or (isinstance(error, StoreError) and ending is None):
                        why = error.why if isinstance(error, StoreAwayError) else one_line(error)
                        if self._backlog is None:
                            self._begin_outage(why)
                        self._outages.why = why
                    else:
                        self._fail(error)
                    self._write = None
                    self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        self._ending, self._due = None, True
        self._waiting.values |= {"status": "failed", "stage": "", "error": one_line(error)}

    def _has_work(self) -> bool:
        """Returns whether there is work, and waits `RETRY_S` first in an outage; False ends the thread."""
        with self._changed:
            if self._backlog is not None:
                self._changed.wait_for(lambda: self._leaving, RETRY_S)
            if self._leaving or self._is_written():
                self._thread = None
                self._changed.notify_all()
                return False
            return True

    def _write_next(self) -> None:
        with self._changed:
            batch, self._waiting, self._due = self._waiting, Entries(), False
            self._write = Write(batch, self._clock())
        self._look()
        self._store.record(self._run.id, batch.chunks, batch.values)
        with self._changed:
            self._write = None
            self._changed.notify_all()
        self._n_writes += 1
        if self._n_writes % COMPACT_EVERY == 0:
            self._store.compact(self._run.id, all_of_it=False)

    def _end(self, ending: Ending) -> None:
        with self._changed:
            self._write = Write(Entries(), self._clock())
        self._store.update_run(self._run.id, **{**ending.values, **ending.settle()})
        with contextlib.suppress(StoreError):  # the run is complete without
            self._store.compact(self._run.id)
        with self._changed:
            self._write = None
            if self._ending is ending:
                self._ending = None
            self._changed.notify_all()

    def _drain(self) -> None:
        """Writes everything that waits; the store is then available again."""
        while True:
            with self._changed:
                backlog, chunks = self._backlog, list[Chunk]()
                if backlog is None or self._leaving:
                    return
                try:
                    chunks = backlog.next()
                except ValueError as error:
                    self._notices.append(f"a part of what waited for the run store is lost: {error}")
                if not chunks:
                    self._resume(backlog)
                    return
            self._store.record(self._run.id, chunks, again=True)
            with self._changed:
                backlog.written(chunks)

    def _resume(self, backlog: Backlog) -> None:
        self._end_outage(backlog, "what was measured meanwhile waited and is complete")
        self._due = True
        if notices := self._notices + self._outages.notices:
            self._waiting.values["notices"] = notices
        backlog.spool.delete()
        self._backlog = None
        self._changed.notify_all()


def _n_bytes(chunks: Iterable[Chunk]) -> int:
    return sum(len(chunk.data) for chunk in chunks)
