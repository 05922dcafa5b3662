"""Brings what a job reports to the run store. Neither the job nor its recorder ever waits for the store."""

import contextlib
import dataclasses
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.errors import (
    StoreAwayError,
    StoreError,
    StoreGoneError,
    StoreOverwrittenError,
    VitprofError,
    one_line,
)
from vitprof.jobs.spool import Spool, places_of
from vitprof.jobs.written_run import WrittenRun
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import Chunk, chunks_of, columns_of, joined
from vitprof.store.database import NO_ANSWER
from vitprof.store.new_run import NewRun

RETRY_S = 1.0
"""How long (s) to wait before an unavailable store is tried again."""
MOST_BYTES = 256 << 20
"""Most bytes of steps and telemetry that wait: over a million steps."""
PATIENCE_BYTES = 8 << 20
"""Bytes that may wait while a write goes on; beyond that the store is taken to be unavailable."""
PATIENCE_S = 7.0
"""How long (s) a write may go on before that is so: SQLite waits 5 s for a lock."""
OPENING_PATIENCE_S = 3.0
"""The same for a store that is being opened, of which nobody knows whether it can be. It takes 0.02 s."""
CHUNKS_AT_ONCE = 128
"""The most chunks of one transaction: what waited for hours does not block the store for others."""
WRITE_WITHIN_S = 30.0
"""How long (s) to wait for the end of a run to be written, and summed up, unless the store is unavailable."""
LEAVE_S = 6.0
"""How long (s) the program's end waits for the current write: SQLite waits 5 s for a lock."""
COMPACT_EVERY = 64
"""Writes after which the chunks of a run are made into fewer ones."""
NOTICED_FROM_S = 1.0
"""A store that was unavailable for less than this (s), and lost nothing, is not worth a notice."""


class Ending(NamedTuple):
    """The end of a run that is not in the store yet."""

    settle: Callable[[], dict[str, Any]]
    """Returns the columns that are made of all the others, once these are stored."""
    values: dict[str, Any]
    t_end_s: float
    """When it ended, on the run's clock."""


class KeptRun(NamedTuple):
    """A run of a store whose file is gone."""

    new: NewRun
    rows: list[tuple[str, bytes]]
    """Kind and bytes of all its chunks."""


@dataclass
class StoreWrite:
    """What is written to the store together."""

    chunks: list[Chunk] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    ending: Ending | None = None
    """The end of the run, which is written alone."""

    @property
    def n_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


@dataclass
class Outages:
    """All times in which the store could not be written, summed up for the notice."""

    n: int = 0
    since_s: float = 0.0
    seconds: float = 0.0
    why: str = ""
    lost: dict[str, int] = field(default_factory=lambda: {"steps": 0, "telemetry": 0, "ranks": 0})
    """Rows that nothing had room for, by kind."""
    why_lost: str = ""
    notices: list[str] = field(default_factory=list)

    def end(self, now_s: float, outcome: str, *, for_good: bool) -> None:
        """Ends the last outage."""
        self.n += 1
        self.seconds += now_s - self.since_s
        words = {"steps": "step", "telemetry": "telemetry sample", "ranks": "step of another rank"}
        lost = [formats.count(n, words[kind]) for kind, n in self.lost.items() if n]
        if lost:
            outcome = f"{' and '.join(lost)} of that time are lost: {self.why_lost}"
        elif self.seconds < NOTICED_FROM_S and not for_good:
            return
        times = "" if self.n == 1 else f" {self.n} times, in all"
        took = formats.seconds(self.seconds)
        line = f"the run store could not be written{times} for {took} ({self.why}); {outcome}"
        self.notices = [line]


class Outbox:
    """A buffer that one thread fills and another writes to the store; that thread runs while there is work for it."""

    def __init__(
        self,
        store: RunStore,
        run: StoredRun | NewRun,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """`run`: a new one is added to the store once that can be used; the store need not be open.

        `on_news` is called where a new run was added, was refused, or has to wait; in any thread.
        """
        self._new: NewRun | None = run if isinstance(run, NewRun) else None
        """The run, while the store does not have it."""
        self.run = run.run if isinstance(run, NewRun) else run
        """Its id is 0 while the store does not have it."""
        self.refused = ""
        """Why the store will never take a new run, in a line; nothing is kept for it then."""
        self._may_be_added = False
        """Whether a try to add it may have succeeded, though it was not answered."""
        self._on_news = on_news
        self._store = store
        self._clock = clock
        self.before_write: Callable[[], None] = lambda: None
        """Is called in the writing thread before each write, unless the store is unavailable; it may use it."""
        self._changed = threading.Condition()
        self._waiting: StoreWrite | None = None
        """What is to be written next; an empty one where it is only time to look."""
        self._write: StoreWrite | None = None
        self._write_since_s = 0.0
        """When it was begun, on the monotonic clock."""
        self._n_writes = 0
        self._n_samples = 0
        """Telemetry samples so far, which is the number of the next one."""
        self._ending: Ending | None = None
        self._spool: Spool | None = None
        """The files of what waits while the store is unavailable; None while it is available."""
        self._is_gone = False
        """Whether the store's file was deleted, replaced or overwritten: this program cannot use the
        store any more."""
        self._written: WrittenRun | None = None
        """What the store has of the run, where that could be lost with its file."""
        if store.file is not None:
            self._written = WrittenRun(places_of(store)[0])
        self._outages = Outages(since_s=clock())
        self._notices: list[str] = []
        """The run's own notices, to which those of outages are added."""
        self._leaving = False
        self._thread: threading.Thread | None = None
        """The writing thread, until it has nothing more to do."""
        self._writer: threading.Thread | None = None
        """The last one, which may not have ended yet."""

    def add(
        self,
        steps: Sequence[Series] = (),
        samples: Iterable[Sequence[float]] = (),
        of_ranks: Sequence[Series] = (),
        **values: Any,
    ) -> None:
        """Adds finished steps, telemetry samples, steps of other ranks and columns of the run.

        Never waits for the store. What has no room is lost, and counted.
        """
        new = [
            *chunks_of("steps", joined("steps", steps)),
            *chunks_of("ranks", joined("ranks", of_ranks)),
        ]
        telemetry = columns_of(samples, TELEMETRY_COLUMNS)
        with self._changed:
            if self.refused:
                return
            n = len(telemetry["t_s"])
            if n:
                numbers = np.arange(self._n_samples, self._n_samples + n, dtype=np.float64)
                self._n_samples += n
                new += chunks_of("telemetry", {"seq": numbers, **telemetry})
            if "notices" in values:
                self._notices = list(values["notices"])
                values["notices"] = self._notices + self._outages.notices
            if "status" in values:
                self._ending = None  # the run goes on
            self._waiting = waiting = self._waiting or StoreWrite()
            waiting.values |= values
            n_bytes = waiting.n_bytes
            if self._write is not None:
                n_bytes += self._write.n_bytes
            for chunk in new:
                n_bytes += len(chunk.data)
                if n_bytes > MOST_BYTES:
                    self._outages.lost[chunk.kind] += chunk.rows
                    self._outages.why_lost = f"the {MOST_BYTES >> 20} MB for waiting data were full"
                    continue
                waiting.chunks.append(chunk)
                if self._spool is not None:
                    self._spool.append(chunk.kind, chunk.data)
            if self._spool is not None and values:
                self._spool.append_values(values)
            if n_bytes > PATIENCE_BYTES or self._patience_s() <= 0:
                self._begin_if_writing()
            self._start()

    def _patience_s(self) -> float:
        """Returns for how much longer the current write may go on; below 0 where that is too long."""
        if self._write is None or self._write.ending is not None:
            # judging a long run takes long
            return math.inf
        patience_s = PATIENCE_S if self._new is None else OPENING_PATIENCE_S
        return self._write_since_s + patience_s - time.monotonic()

    def _begin_if_writing(self) -> None:
        if self._spool is None and self._write is not None:
            self._begin_outage(NO_ANSWER)

    def finish(
        self, settle: Callable[[], dict[str, Any]], *, t_end_s: float, **values: Any
    ) -> None:
        """Adds the last columns of a run that has ended.

        They are written once the store has all the rest, with those that `settle` then returns, in the
        writing thread. `t_end_s`: when the run ended, on its clock; with it another program can do the
        same where this one has to leave.
        """
        with self._changed:
            if self.refused:
                return
            self._ending = Ending(settle, values, t_end_s)
            if self._spool is not None:
                self._spool.append_values({**values, "t_end_s": t_end_s})
            self._start()

    def wait_for_end(self, within_s: float = WRITE_WITHIN_S) -> None:
        """Waits up to `within_s` until all is written, unless the store is unavailable."""
        until_s = time.monotonic() + within_s
        with self._changed:
            while not self._is_written() and self._spool is None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                if self._patience_s() <= 0:
                    self._begin_if_writing()
                    return
                self._changed.wait(min(left_s, self._patience_s()))

    @property
    def unavailable(self) -> str:
        """Returns why the store cannot be written just now; "" where it can."""
        with self._changed:
            return "" if self._spool is None else self._outages.why

    @property
    def is_gone(self) -> bool:
        """Returns whether the store's file was deleted, replaced or overwritten: what waits, waits for
        the next program."""
        with self._changed:
            return self._is_gone

    def wait(self, within_s: float) -> bool:
        """Waits up to `within_s` until all is written, and the writing thread has ended, unless the store's
        file is gone; returns whether all is written."""
        until_s = time.monotonic() + within_s
        with self._changed:
            self._changed.wait_for(lambda: self._is_written() or self._is_gone, within_s)
            is_written = self._is_written()
            writer = self._writer
        if is_written and writer is not None:
            writer.join(max(0.0, until_s - time.monotonic()))
        return is_written

    def leave(self) -> str:
        """Leaves in files what the store could not take, for the next program.

        Returns a line that says so; "" where the store has everything.
        """
        line = ""
        with self._changed:
            thread = self._thread
            if self._new is not None:
                # it is no write that would be cut short
                thread = None
            self._leaving = True
            if self._spool is None and not self._is_written():
                self._begin_outage(NO_ANSWER)
            if self._spool is not None:
                line = self._leave_files(self._spool)
            self._changed.notify_all()
        if thread is not None:
            thread.join(LEAVE_S)
        return line

    def _leave_files(self, spool: Spool) -> str:
        # some of it is in no file: once more, all that the store may not have
        if spool.error:
            self._keep(spool, lost=self._outages.lost)
            self._outages.why_lost = spool.error
        outcome = "what was measured meanwhile was imported later"
        self._outages.end(self._clock(), outcome, for_good=True)
        spool.append_values({"notices": self._notices + self._outages.notices})
        names = spool.leave()
        line = f"the run store is unavailable ({self._outages.why})"
        if not names:
            return f"{line}, and {self._outages.why_lost}"
        return f"{line}: what it could not take is in {names} until vitprof starts again"

    def _is_written(self) -> bool:
        open_ends = (self._new, self._waiting, self._write, self._spool, self._ending)
        return all(each is None for each in open_ends)

    def _start(self) -> None:
        if self._thread is None and not self._leaving:
            self._thread = threading.Thread(
                target=self._work, name=f"vitprof-writer-{self.run.id}", daemon=True
            )
            self._writer = self._thread
            self._thread.start()
        self._changed.notify_all()

    def _begin_outage(self, why: str, kept: KeptRun | None = None) -> None:
        """Begins to write what waits to files, too; `kept`: after the whole run as a file has it that is
        gone."""
        self._outages.why = why
        new, rows = kept or (self._new, [])
        self._spool = Spool(self._store, self.run, why, new=new)
        for kind, data in rows:
            self._spool.append(kind, data)
        self._keep(self._spool)
        self._changed.notify_all()
        if self._new is not None:
            self._on_news()

    def _kept(self, error: StoreGoneError) -> KeptRun | None:
        """Returns the run from the store's file that is gone; None where it cannot be had any more."""
        if isinstance(error, StoreOverwrittenError):
            return self._kept_beside()
        with contextlib.suppress(StoreError, ValueError):
            kept = self._store.kept_in_gone_file(self.run.id)
            if kept is not None:
                new, chunks = kept
                return KeptRun(new, [(chunk.kind, chunk.data) for chunk in chunks])
        return None

    def _kept_beside(self) -> KeptRun | None:
        written = self._written
        if written is None or written.columns is None:
            return None
        with contextlib.suppress(OSError):
            kept = KeptRun(NewRun(written.columns), list(written.rows()))
            with self._changed:
                for kind, n in written.lost.items():
                    self._outages.lost[kind] += n
                self._outages.why_lost = written.why_lost or self._outages.why_lost
            written.drop()
            return kept
        return None

    def _keep(self, spool: Spool, lost: dict[str, int] | None = None) -> None:
        """Writes to files all that the store may not have; counts rows without room in `lost`."""
        values: dict[str, Any] = {}
        # that of `_write` may have been stored after all: steps that are there are not added again
        batches = [batch for batch in (self._write, self._waiting) if batch is not None]
        for batch in batches:
            for chunk in batch.chunks:
                if not spool.append(chunk.kind, chunk.data) and lost is not None:
                    lost[chunk.kind] += chunk.rows
            values |= batch.values
        if self._ending is not None:
            values |= {**self._ending.values, "t_end_s": self._ending.t_end_s}
        if values:
            spool.append_values(values)

    def _work(self) -> None:
        while self._choose_next():
            try:
                self._store_next()
            except Exception as error:
                self._fail(error)

    def _choose_next(self) -> bool:
        """Puts into `_write` what is to be written next; False ends the thread."""
        with self._changed:
            if self._leaving or self._is_written():
                self._thread = None
                self._changed.notify_all()
                return False
            if self._spool is None:
                self._outages.since_s = self._clock()
            waiting = self._waiting
            self._write_since_s = time.monotonic()
            if waiting is None:
                # the end only once all the rest is stored
                self._write = StoreWrite(ending=self._ending)
            elif len(waiting.chunks) > CHUNKS_AT_ONCE:
                self._write = StoreWrite(waiting.chunks[:CHUNKS_AT_ONCE])
                self._waiting = StoreWrite(waiting.chunks[CHUNKS_AT_ONCE:], waiting.values)
            else:
                self._write = waiting
                self._waiting = None
            return True

    def _add_run(self, new: NewRun) -> None:
        """Adds a new run to the store. Raises `StoreError`."""
        self._store.open()
        if self._leaving:
            # the next program adds it
            raise StoreAwayError("the program ends", NO_ANSWER)
        again = self._may_be_added
        self._may_be_added = True
        run_id = self._store.add_new(new, again=again)
        if run_id < 0:
            raise StoreError(f"run {-run_id} was deleted")
        with self._changed:
            self._new = None
            self.run = dataclasses.replace(self.run, run_id=run_id)
            self._write_since_s = time.monotonic()
        self._on_news()

    def _refuse(self, why: str) -> None:
        """Drops all that waits for a store that can be used, and does not take runs."""
        with self._changed:
            self.refused = why
            self._new = None
            self._write = None
            self._waiting = None
            self._ending = None
            if self._spool is not None:
                self._spool.delete()
                self._spool = None
            self._changed.notify_all()
        self._on_news()

    def _store_next(self) -> None:
        if self._new is not None:
            try:
                self._add_run(self._new)
            except StoreAwayError:
                raise
            except Exception as error:
                self._refuse(one_line(error))
                return
        batch = self._write or StoreWrite()
        ending = batch.ending
        if ending is not None:
            self._write_end(ending)
        else:
            self._record(batch)
        with self._changed:
            self._write = None
            if self._ending is ending:
                self._ending = None
            if self._spool is not None and self._waiting is None and not self._leaving:
                self._end_outage(self._spool)
            self._changed.notify_all()
        self._n_writes += 1
        if ending is None and self._n_writes % COMPACT_EVERY == 0:
            self._store.compact(self.run.id, all_of_it=False)

    def _write_end(self, ending: Ending) -> None:
        self._store.update_run(self.run.id, **{**ending.values, **ending.settle()})
        # the run is complete without
        with contextlib.suppress(StoreError):
            self._store.compact(self.run.id)
        if self._written is not None:
            self._written.drop()

    def _record(self, batch: StoreWrite) -> None:
        if self._spool is None:
            self.before_write()
        written = self._written
        if written is not None and written.columns is None:
            written.columns = self._store.columns_of(self.run.id)
        is_again = self._spool is not None
        self._store.record(self.run.id, batch.chunks, batch.values, again=is_again)
        if written is not None:
            written.add(batch.chunks, batch.values)

    def _end_outage(self, spool: Spool) -> None:
        outcome = "what was measured meanwhile waited and is complete"
        self._outages.end(self._clock(), outcome, for_good=False)
        notices = self._notices + self._outages.notices
        self._waiting = StoreWrite(values={"notices": notices} if notices else {})
        spool.delete()
        self._spool = None

    def _fail(self, error: Exception) -> None:
        """Puts back what could not be written, and waits `RETRY_S`.

        An error that is not the store's, or that of a run's end, makes the run fail.
        """
        is_news = isinstance(error, StoreGoneError) and not self.is_gone
        kept = None
        if isinstance(error, StoreGoneError) and is_news:
            kept = self._kept(error)
        with self._changed:
            if is_news:
                self._is_gone = True
                if self._spool is not None:
                    # it was begun for a store that would have the run
                    self._spool.delete()
                    self._spool = None
            failed = self._write or StoreWrite()
            waiting = self._waiting or StoreWrite()
            self._write = None
            is_away = isinstance(error, StoreAwayError)
            if is_away or (isinstance(error, StoreError) and failed.ending is None):
                chunks = [*failed.chunks, *waiting.chunks]
                # what waits is newer
                self._waiting = StoreWrite(chunks, failed.values | waiting.values)
                why = error.why if isinstance(error, StoreAwayError) else one_line(error)
                if self._spool is None:
                    self._begin_outage(why, kept)
                self._outages.why = why
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._leaving, RETRY_S)
                return
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            self._ending = None
            self._waiting = waiting
            waiting.values |= {"status": "failed", "stage": "", "error": one_line(error)}
            self._changed.notify_all()
