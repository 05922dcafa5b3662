"""Imports runs that were recorded elsewhere into the store: all of them, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.store.chunks import chunks_of
from vitprof.store.run_store import RunStore, inserted_id, own_columns, set_tags
from vitprof.store.schema import figures, listed, runs
from vitprof.store.series import insert_chunks

VALUES_AT_ONCE = 500
"""Values in one query: SQLite before version 3.32 takes at most 999 (https://sqlite.org/limits.html)."""


@dataclass(frozen=True)
class RecordedRun:
    """The columns that identify a run of this store."""

    id: int
    created_utc: str
    t_origin_s: float | None
    owner_host: str
    facts: Mapping[str, Any]


class RunImport:
    """A transaction that imports runs."""

    def __init__(self, db: sa.Connection) -> None:
        self._db = db

    def recorded_in(self, moments: Collection[str]) -> Iterator[RecordedRun]:
        """Yields the runs of this store whose `created_utc` is one of `moments`."""
        query = sa.select(runs.c.id, runs.c.created_utc, runs.c.t_origin_s, runs.c.owner_host, runs.c.facts)
        wanted = sorted(moments)
        for first in range(0, len(wanted), VALUES_AT_ONCE):
            part = wanted[first : first + VALUES_AT_ONCE]
            for row in self._db.execute(query.where(runs.c.created_utc.in_(part))):
                yield RecordedRun(row.id, row.created_utc, row.t_origin_s, row.owner_host, row.facts or {})

    def insert(self, values: Mapping[str, Any], *, steps: Series, telemetry: Series, tags: Iterable[str] = ()) -> int:
        """Adds a run that has ended, with its series and tags, and returns its new id. This process becomes its owner.

        `values` are columns of `runs` as plain values, without those of the owner.
        """
        known = listed(values["config"]) | figures(values.get("summary"))
        known |= {"verdict_kind": (values.get("verdict") or {}).get("kind", "")}
        run_id = inserted_id(self._db.execute(sa.insert(runs).values(**own_columns(), **known, **values)))
        insert_chunks(self._db, run_id, chunks_of("steps", steps, merge=True))
        insert_chunks(self._db, run_id, chunks_of("telemetry", telemetry, merge=True))
        set_tags(self._db, run_id, tags)
        return run_id


@contextlib.contextmanager
def importing(store: RunStore) -> Iterator[RunImport]:
    """Yields an import whose runs are committed at the end of the block, all or none. Raises `StoreError`."""
    with store.transaction() as db:
        yield RunImport(db)
