"""An older store becomes this version's: whole or not at all, and once, whoever opens it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.store import STORE_VERSION, RunStore, database, migrations
from vitprof.store.database import metadata, runs

NEW = ("owner_user", "project")
"""Columns that version 7 had not."""


@pytest.fixture
def old(url: str) -> Iterator[sa.Engine]:
    """A store of version 7 with a run."""
    with closing(RunStore(url)) as store:
        store.create_run(RunConfig(name="old"))
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.exec_driver_sql("drop index ix_runs_owner_user")
        for name in NEW:
            db.exec_driver_sql(f"alter table runs drop column {name}")
        db.exec_driver_sql("update alembic_version set version_num = '7'")
    yield engine
    engine.dispose()


def columns(engine: sa.Engine) -> set[str]:
    return {column["name"] for column in sa.inspect(engine).get_columns("runs")}


def test_it_gets_the_tables_of_this_version_and_keeps_its_runs(old: sa.Engine, url: str) -> None:
    assert not columns(old) & set(NEW)
    with closing(RunStore(url)) as store:
        run = store.run(1)
        assert (run.name, run.owner_user, run.project) == ("old", "", "")
        assert store.run(store.create_run(RunConfig())).owner_user
    with old.connect() as db:
        assert compare_metadata(MigrationContext.configure(db), metadata) == []
        assert db.execute(sa.select(database.versions)).scalar_one() == str(STORE_VERSION)


def test_programs_that_open_it_at_once_migrate_it_once(old: sa.Engine, url: str) -> None:
    def opened(_: int) -> str:
        with closing(RunStore(url)) as store:
            return store.run(1).name

    with ThreadPoolExecutor(4) as at_once:
        assert list(at_once.map(opened, range(4))) == ["old"] * 4


def test_a_migration_that_fails_leaves_it_as_it_was(
    old: sa.Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(db: sa.Connection) -> None:
        migrations.migrate(db)
        db.execute(sa.insert(runs).values(id=1))

    monkeypatch.setattr(database, "migrate", fails)
    with pytest.raises(StoreError, match=r"the run store .* failed"):
        RunStore(url)
    assert not columns(old) & set(NEW)
    monkeypatch.undo()
    with closing(RunStore(url)) as store:
        assert store.run(1).name == "old"
