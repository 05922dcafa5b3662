"""Runs that were recorded elsewhere, on their way into the store: all of them, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.store.run_store import RunStore, inserted_id, own_columns, set_tags
from vitprof.store.schema import figures, listed, runs, steps, telemetry
from vitprof.store.series import insert_rows

ROWS_AT_ONCE = 10_000
"""Rows of a series on their way into the database at the same time: 100,000 of them as Python objects take 100 MB."""
VALUES_AT_ONCE = 500
"""Values in one question: SQLite takes at most 999 of them in versions before 3.32 (https://sqlite.org/limits.html)."""


@dataclass(frozen=True)
class RecordedRun:
    """What tells a run of this store from others."""

    id: int
    created_utc: str
    t_origin_s: float | None
    owner_host: str
    facts: Mapping[str, Any]


class RunImport:
    """One transaction that takes runs in."""

    def __init__(self, db: sa.Connection) -> None:
        self._db = db

    def recorded_in(self, moments: Collection[str]) -> Iterator[RecordedRun]:
        """Yields the runs of this store that were made in one of these seconds (`created_utc`)."""
        query = sa.select(runs.c.id, runs.c.created_utc, runs.c.t_origin_s, runs.c.owner_host, runs.c.facts)
        wanted = sorted(moments)
        for first in range(0, len(wanted), VALUES_AT_ONCE):
            part = wanted[first : first + VALUES_AT_ONCE]
            for row in self._db.execute(query.where(runs.c.created_utc.in_(part))):
                yield RecordedRun(row.id, row.created_utc, row.t_origin_s, row.owner_host, row.facts or {})

    def insert(self, values: Mapping[str, Any], *, steps: Series, telemetry: Series, tags: Iterable[str] = ()) -> int:
        """Adds a run with its series; returns its new id.

        `values` are columns of `runs` as plain values; they belong to this process, the run having ended.
        """
        known = listed(values["config"]) | figures(values.get("summary"))
        known |= {"verdict_kind": (values.get("verdict") or {}).get("kind", "")}
        run_id = inserted_id(self._db.execute(sa.insert(runs).values(**own_columns(), **known, **values)))
        _insert_series(self._db, run_id, steps, telemetry)
        set_tags(self._db, run_id, tags)
        return run_id


@contextlib.contextmanager
def importing(store: RunStore) -> Iterator[RunImport]:
    """Takes runs in: what is inserted within the block is kept at its end, all or none. Raises `StoreError`."""
    with store.transaction() as db:
        yield RunImport(db)


def _insert_series(db: sa.Connection, run_id: int, step_rows: Series, samples: Series) -> None:
    """Adds every column of both tables, a part at a time."""
    for table, series in ((steps, step_rows), (telemetry, samples)):
        n = len(next(iter(series.values()), ()))
        for first in range(0, n, ROWS_AT_ONCE):
            part = [values[first : first + ROWS_AT_ONCE].tolist() for values in series.values()]
            owner = [run_id] * min(ROWS_AT_ONCE, n - first)
            insert_rows(db, table, ("run_id", *series), list(zip(owner, *part, strict=True)))
