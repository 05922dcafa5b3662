"""A store with more runs than its database takes values in one query."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.test_tournaments import made as made_tournament
from vitprof.config import RunConfig
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import now_utc, run_tags, runs, series, tournaments
from vitprof.store.machines import last_steps
from vitprof.store.retention import expired
from vitprof.store.run_store import erase_rows
from vitprof.store.tournaments import insert_tournament

MOST_VALUES = 999
"""What old versions of SQLite take; newer ones 32,766, which would need as many runs here."""


def doubled(store: RunStore, table: sa.Table, n: int) -> None:
    """Copies the rows of a table until there are at least `n`, with keys of their own."""
    columns = [column for column in table.c if column.name != "id"]
    count = 1
    while count < n:
        with store.transaction() as db:
            db.execute(sa.insert(table).from_select(columns, sa.select(*columns)))
            count = db.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def run_ids(store: RunStore) -> list[int]:
    with store.transaction() as db:
        return list(db.execute(sa.select(runs.c.id)).scalars())


@pytest.fixture
def many(tmp_path: Path) -> Iterator[RunStore]:
    """A store with more runs and tournaments than `MOST_VALUES`, which is what its database takes."""
    with closing(RunStore(f"sqlite:///{tmp_path / 'many.sqlite'}")) as store:
        store.update_run(store.create_run(RunConfig()), status="done", created_utc=now_utc(100))
        doubled(store, runs, MOST_VALUES + 1)

        def limited(connection: Any, *_: Any) -> None:
            connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, MOST_VALUES)

        sa.event.listen(store._engine, "connect", limited)
        store._engine.dispose()
        yield store


def test_all_runs_are_listed_with_their_tags(many: RunStore) -> None:
    ids = run_ids(many)
    with many.transaction() as db:
        db.execute(
            sa.insert(run_tags), [{"run_id": each, "tag": tag} for each in ids for tag in "ba"]
        )
    rows = many.list_runs(RunQuery(), limit=len(ids))
    assert len(rows) == len(ids) > MOST_VALUES
    assert {row.tags for row in rows} == {("a", "b")}


def test_the_last_steps_of_any_number_of_runs_are_known(many: RunStore) -> None:
    known = {"kind": "steps", "rank": 0, "chunk": 0, "last": 7}
    known |= {"rows": 8, "merged": False, "bytes": b""}
    with many.transaction() as db:
        db.execute(sa.insert(series), [{"run_id": each, **known} for each in run_ids(many)])
    assert last_steps(many, run_ids(many)) == {each: {0: 7} for each in run_ids(many)}


def test_any_number_of_runs_and_tournaments_is_old_and_erased(many: RunStore) -> None:
    insert_tournament(many, made_tournament())
    with many.transaction() as db:
        db.execute(sa.update(tournaments).values(created_utc=now_utc(100), status="done"))
    doubled(many, tournaments, MOST_VALUES + 1)
    found = expired(many, 90.0)
    assert len(found.runs) == len(run_ids(many)) > MOST_VALUES
    assert len(found.tournaments) > MOST_VALUES
    with many.writing() as db:
        erase_rows(db, found.runs)
    assert run_ids(many) == []
