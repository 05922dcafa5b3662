"""Steps and telemetry in the store."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import sqlalchemy as sa

from vitprof.analysis.arrays import Floats, Series
from vitprof.errors import StoreAwayError, StoreError
from vitprof.store.database import Database
from vitprof.store.schema import STEP_FIELDS, TELEMETRY_FIELDS, steps, telemetry

ROWS_AT_ONCE = 2_048
"""Rows that are fetched as Python objects at once: 2 MB. A million steps as objects take 1.5 GB, as arrays 264 MB."""
PART_ROWS = 16_384
"""Most rows of a part, see `SeriesStore.steps_in_parts`: 4 MB."""


class SeriesStore(Database):
    """The steps and the telemetry of runs. All methods raise `StoreError`."""

    def append_steps(self, run_id: int, rows: Iterable[Sequence[float]], *, again: bool = False) -> None:
        """Adds steps, each row in the order of `STEP_COLUMNS`; with `again`, skips those that are stored already."""
        self._append(steps, ("run_id", *STEP_FIELDS), [(run_id, *row) for row in rows], again=again)

    def leave_out(self, run_id: int, numbers: Collection[int]) -> None:
        """Sets `warmup` to 1 for stored steps, which leaves them out of steady-state figures. `numbers`: the steps'."""
        chosen = sa.update(steps).where(steps.c.run_id == run_id, steps.c.step == sa.bindparam("number"))
        if numbers:
            with self.transaction() as db:
                db.execute(chosen.values(warmup=1), [{"number": number} for number in numbers])

    def append_telemetry(
        self, run_id: int, first_seq: int, rows: Iterable[Sequence[float]], *, again: bool = False
    ) -> None:
        """Adds telemetry samples, numbered from `first_seq`, each row in the order of `TELEMETRY_COLUMNS`; with
        `again`, skips those that are stored already.
        """
        numbered = [(run_id, seq, *row) for seq, row in enumerate(rows, first_seq)]
        self._append(telemetry, ("run_id", "seq", *TELEMETRY_FIELDS), numbered, again=again)

    def _append(self, table: sa.Table, names: Sequence[str], rows: Sequence[Sequence[float]], *, again: bool) -> None:
        if not rows:
            return
        with self.transaction() as db:
            if again:
                key = [column.name for column in table.primary_key.columns][1:]  # the run comes first
                key_of = itemgetter(*(names.index(name) for name in key))
                number = names.index(key[0])
                first, last = (most(row[number] for row in rows) for most in (min, max))
                there = db.execute(
                    sa.select(*(table.c[name] for name in key)).where(
                        table.c.run_id == rows[0][0], table.c[key[0]].between(first, last)
                    )
                )
                known = {tuple(row) if len(key) > 1 else row[0] for row in there}
                rows = [row for row in rows if key_of(row) not in known]
            if rows:
                insert_rows(db, table, names, rows)

    def n_steps(self, run_id: int) -> int:
        """Returns the number of the run's steps, without reading them."""
        with self.transaction() as db:
            return int(db.execute(sa.select(sa.func.count()).where(steps.c.run_id == run_id)).scalar_one())

    def steps(
        self, run_id: int, *, after: int = -1, until: int | None = None, names: Sequence[str] = STEP_FIELDS
    ) -> Series:
        """Returns the run's steps with numbers above `after` and up to `until`, in order: for each of the columns
        `names` a float64 array, NaN where a value is not available.
        """
        query = _rows_of(steps, run_id, steps.c.step, after, names)
        return self._series(query if until is None else query.where(steps.c.step <= until), names)

    def telemetry(self, run_id: int, *, after: int = -1, names: Sequence[str] = TELEMETRY_FIELDS) -> Series:
        """Returns the run's telemetry samples with numbers above `after`, in order, as `steps` does; "seq" holds the
        numbers.
        """
        wanted = ("seq", *names)
        return self._series(_rows_of(telemetry, run_id, telemetry.c.seq, after, wanted), wanted)

    def steps_in_parts(
        self, run_id: int, *, after: int = -1, names: Sequence[str] = STEP_FIELDS, rows: int = PART_ROWS
    ) -> Iterator[Series]:
        """Yields the run's steps with numbers above `after`, in order, at most `rows` at a time; at least one part.

        A run of any length takes the memory of one part. All parts show the run as it was at the first one.
        """
        found = False
        for block in self._blocks(_rows_of(steps, run_id, steps.c.step, after, names), rows):
            found = True
            yield _columns(block, names)
        if not found:
            yield _columns(np.empty((len(names), 0)), names)

    def _series(self, query: sa.Select[Any], names: Sequence[str]) -> Series:
        blocks = deque(self._blocks(query, PART_ROWS))
        whole, at = np.empty((len(names), sum(block.shape[1] for block in blocks))), 0
        while blocks:  # each block is freed before the next one is copied
            block = blocks.popleft()
            whole[:, at : at + block.shape[1]] = block
            at += block.shape[1]
        return _columns(whole, names)

    def _blocks(self, query: sa.Select[Any], rows: int) -> Iterator[Floats]:
        """Yields the results of a query as float64 arrays (columns, at most `rows`); null becomes NaN.

        Uses the driver's own cursor: SQLAlchemy would make an object of each row, which takes longer than reading it.
        """
        with self.transaction() as db:
            result = db.execute(query)
            width = len(result.keys())
            block, n = np.empty((width, rows)), 0
            try:
                while found := result.cursor.fetchmany(min(ROWS_AT_ONCE, rows - n)) if result.cursor else []:
                    block[:, n : n + len(found)] = np.array(found, dtype=np.float64).T
                    n += len(found)
                    if n == rows:
                        yield block
                        block, n = np.empty((width, rows)), 0
            except _driver(db).Error as error:
                said = f"the run store {self.url} failed: {error}"
                if isinstance(error, _driver(db).OperationalError):
                    raise StoreAwayError(said, str(error)) from error
                raise StoreError(said) from error
            finally:
                result.close()
        if n:
            yield block[:, :n]


def _rows_of(table: sa.Table, run_id: int, order: sa.Column[Any], after: int, names: Sequence[str]) -> sa.Select[Any]:
    columns = (table.c[name] for name in names)
    return sa.select(*columns).where(table.c.run_id == run_id, order > after).order_by(order)


def _driver(db: sa.Connection) -> Any:
    """Returns the driver's module, which defines the errors that the driver raises (PEP 249)."""
    return db.dialect.loaded_dbapi


def _columns(block: Floats, names: Sequence[str]) -> Series:
    return dict(zip(names, block, strict=True))


def insert_rows(
    db: sa.Connection, table: sa.Table, names: Sequence[str], rows: Sequence[Sequence[float | None]]
) -> None:
    """Adds rows, each in the order of `names`. Raises `ValueError` for a row that has more or fewer values.

    Calls the driver directly where it takes rows as tuples: SQLAlchemy's dictionaries take 14 us a step, as much as
    watching it from inside, and 1.5 s for 100,000 steps of a file, during which nobody else can write.
    """
    if any(len(row) != len(names) for row in rows):
        raise ValueError(f"{table.name}: a row needs {len(names)} values: {', '.join(names)}")
    statement, order = _prepared(table, db.dialect)
    if order is None:
        db.execute(sa.insert(table), [dict(zip(names, row, strict=True)) for row in rows])
        return
    if order != tuple(names):
        pick = itemgetter(*(names.index(name) for name in order))
        rows = [pick(row) for row in rows]
    db.exec_driver_sql(statement, list(map(tuple, rows)))


@functools.lru_cache(maxsize=8)
def _prepared(table: sa.Table, dialect: sa.Dialect) -> tuple[str, tuple[str, ...] | None]:
    """Returns the statement that inserts a row, and the order of its values; None where the driver takes names."""
    compiled = sa.insert(table).compile(dialect=dialect)
    order = getattr(compiled, "positiontup", None)
    return str(compiled), order and tuple(order)
