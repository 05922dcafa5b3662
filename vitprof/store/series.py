"""Steps and telemetry in the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from vitprof.analysis.arrays import Floats, Series
from vitprof.errors import StoreError
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store.chunks import MOST_ROWS, NUMBER, Chunk, Kind, chunks_of, joined, merge, n_rows
from vitprof.store.database import Database, series

PART_ROWS = 16_384
"""Most rows of a part, see `SeriesStore.steps_in_parts`: 4 MB."""
MOST_SMALL_ROWS = MOST_ROWS
"""The number of rows in small chunks that are merged while a run lives. More costs no less CPU that could be told from
noise but makes the file larger: 58, 78, 95 or 136 MB for a million steps with 1, 4, 8 or 16 times `MOST_ROWS`."""
INSERT = sa.insert(series)
"""Made once: to make a statement takes longer than to run it."""
MOST_CHUNKS = 1_024
"""The number of small chunks that are merged though they have few rows: reading one takes 0.1 ms."""


class SeriesStore(Database):
    """The steps and the telemetry of runs. All methods raise `StoreError`."""

    def mark_warmup(self, run_id: int, numbers: Collection[int]) -> None:
        """Sets `warmup` to 1 for stored steps, which leaves them out of steady-state figures. `numbers`: the steps'."""
        if not numbers:
            return
        wanted = np.array(sorted(numbers), dtype=np.float64)
        near = _chunks(run_id, "steps", int(wanted[0]) - 1, int(wanted[-1]))
        with self.writing() as db:
            for row in db.execute(near.with_for_update()).fetchall():
                chunk = _chunk(row)
                if not np.isin(wanted, chunk.read(["step"])["step"]).any():
                    continue
                steps = chunk.read()
                before = steps.get("warmup", np.zeros(chunk.rows))
                steps["warmup"] = np.where(np.isin(steps["step"], wanted), 1.0, before)
                db.execute(sa.update(series).where(*_is(run_id, chunk)).values(bytes=chunk.replaced(steps).data))

    def compact(self, run_id: int, *, all_of_it: bool = True) -> None:
        """Merges the run's small chunks into large ones; unless `all_of_it`, only where they have become many."""
        small = (series.c.run_id == run_id, series.c.merged.is_(False))
        totals = sa.select(series.c.kind, series.c.rank, sa.func.count(), sa.func.sum(series.c.rows)).where(*small)
        with self.transaction() as db:
            found = db.execute(totals.group_by(series.c.kind, series.c.rank)).fetchall()
        for kind, rank, n, rows in found:
            if all_of_it or rows >= MOST_SMALL_ROWS or n >= MOST_CHUNKS:
                self._merge(run_id, (*small, series.c.kind == kind, series.c.rank == rank))

    def _merge(self, run_id: int, small: Sequence[sa.ColumnElement[bool]]) -> None:
        with self.transaction() as db:
            chunks = [_chunk(row) for row in db.execute(sa.select(series).where(*small).order_by(series.c.chunk))]
        large = merge(chunks)
        with self.writing() as db:
            gone = db.execute(sa.delete(series).where(*small, series.c.chunk <= chunks[-1].first))
            if gone.rowcount != len(chunks):
                raise StoreError(f"the {chunks[0].kind} of run {run_id} changed while they were being merged")
            insert_chunks(db, run_id, large)

    def n_steps(self, run_id: int) -> int:
        """Returns the number of the run's steps, without reading them."""
        total = sa.select(sa.func.sum(series.c.rows)).where(series.c.run_id == run_id, series.c.kind == "steps")
        with self.transaction() as db:
            return int(db.execute(total).scalar() or 0)

    def step_names(self, run_id: int) -> tuple[str, ...]:
        """Returns the names of the columns of the run's steps: `STEP_COLUMNS`, then those of other versions."""
        with self.transaction() as db:
            found = (name for row in db.execute(_chunks(run_id, "steps", -1, None)) for name in _chunk(row).names)
            return tuple(dict.fromkeys((*STEP_COLUMNS, *found)))

    def steps(
        self, run_id: int, *, after: int = -1, until: int | None = None, names: Sequence[str] | None = None
    ) -> Series:
        """Returns the run's steps with numbers above `after` and up to `until`, in order: for each of the columns
        `names` a float64 array, NaN where a value is not available. By default all columns: those of `STEP_COLUMNS`,
        then those that only another version knows.
        """
        return self._whole(run_id, "steps", after, until, names)

    def telemetry(self, run_id: int, *, after: int = -1, names: Sequence[str] | None = None) -> Series:
        """Returns the run's telemetry samples with numbers above `after`, in order, as `steps` does; "seq" holds the
        numbers.
        """
        return self._whole(run_id, "telemetry", after, None, None if names is None else ("seq", *names))

    def steps_in_parts(
        self, run_id: int, *, after: int = -1, names: Sequence[str] | None = None, rows: int = PART_ROWS
    ) -> Iterator[Series]:
        """Yields the run's steps with numbers above `after`, in order, at most `rows` at a time; at least one part."""
        wanted = _with_number("steps", names)
        waiting: list[Series] = []
        n, none_yet = 0, True
        with self.transaction() as db:
            query = _chunks(run_id, "steps", after, None)
            for row in db.execution_options(stream_results=True, max_row_buffer=16).execute(query):
                waiting.append(self._part(row, wanted, after, None))
                n += n_rows(waiting[-1])
                if n < rows:
                    continue
                whole, full = joined("steps", waiting, wanted), n - n % rows
                for at in range(0, full, rows):
                    yield {name: whole[name][at : at + rows] for name in names or whole}
                waiting, n, none_yet = [{name: values[full:] for name, values in whole.items()}], n - full, False
        if n or none_yet:
            whole = joined("steps", waiting, wanted)
            yield {name: whole[name] for name in names or whole}

    def _whole(
        self, run_id: int, kind: Kind, after: int, until: int | None, names: Sequence[str] | None
    ) -> dict[str, Floats]:
        wanted = _with_number(kind, names)
        with self.transaction() as db:
            found = db.execute(_chunks(run_id, kind, after, until)).fetchall()
        parts = (self._part(row, wanted, after, until) for row in found)
        whole = joined(kind, parts, wanted, most=sum(row.rows for row in found))
        return {name: whole[name] for name in names or whole}

    def _part(self, row: sa.Row[Any], names: Sequence[str] | None, after: int, until: int | None) -> Series:
        chunk = _chunk(row)
        try:
            part = chunk.read(names)
        except ValueError as error:
            raise StoreError(f"the run store {self.url} failed: run {row.run_id} has {error}") from error
        numbers = part[NUMBER[chunk.kind]]
        first = int(np.searchsorted(numbers, after, side="right"))
        end = chunk.rows if until is None else int(np.searchsorted(numbers, until, side="right"))
        return part if (first, end) == (0, chunk.rows) else {name: v[first:end] for name, v in part.items()}


def _with_number(kind: Kind, names: Sequence[str] | None) -> Sequence[str] | None:
    number = NUMBER[kind]
    return names if names is None or number in names else (number, *names)


def insert_chunks(db: sa.Connection, run_id: int, chunks: Iterable[Chunk], *, again: bool = False) -> None:
    """Adds chunks; with `again`, without the rows that are stored already."""
    for each in chunks:
        for new in _not_stored(db, run_id, each) if again else [each]:
            values = {"run_id": run_id, "kind": new.kind, "rank": new.rank, "chunk": new.first, "last": new.last}
            db.execute(INSERT, {**values, "rows": new.rows, "merged": new.merged, "bytes": new.data})


def _not_stored(db: sa.Connection, run_id: int, chunk: Chunk) -> list[Chunk]:
    near = _chunks(run_id, chunk.kind, chunk.first - 1, chunk.last).where(series.c.rank == chunk.rank)
    stored = [_chunk(row).read([NUMBER[chunk.kind]])[NUMBER[chunk.kind]] for row in db.execute(near)]
    if not stored:
        return [chunk]
    rows = chunk.read()
    new = ~np.isin(rows[NUMBER[chunk.kind]], np.concatenate(stored))
    return list(chunks_of(chunk.kind, {name: values[new] for name, values in rows.items()}))


def _chunks(run_id: int, kind: Kind, after: int, until: int | None) -> sa.Select[Any]:
    query = sa.select(series).where(series.c.run_id == run_id, series.c.kind == kind, series.c.last > after)
    if until is not None:
        query = query.where(series.c.chunk <= until)
    return query.order_by(series.c.chunk, series.c.rank)


def _chunk(row: sa.Row[Any]) -> Chunk:
    return Chunk(row.kind, row.rank, row.chunk, row.last, row.rows, row.bytes)


def _is(run_id: int, chunk: Chunk) -> tuple[sa.ColumnElement[bool], ...]:
    key = {"run_id": run_id, "kind": chunk.kind, "rank": chunk.rank, "chunk": chunk.first}
    return tuple(series.c[name] == value for name, value in key.items())
