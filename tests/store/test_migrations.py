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
from vitprof.recording.verdict import NoVerdict, Verdict
from vitprof.store import STORE_VERSION, RunQuery, RunStore, database, migrations
from vitprof.store.database import metadata, runs

NEW = ("owner_user", "project", "device_idle_frac")
"""Columns that version 7 had not."""
PREDICTIONS = sa.Table(
    "predictions",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("profile_run_id", sa.Integer, nullable=False, index=True),
    sa.Column("micro_run_id", sa.Integer, nullable=False),
    sa.Column("verified_run_id", sa.Integer),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("created_utc", sa.String, nullable=False),
    *(sa.Column(name, sa.Double, nullable=False) for name in ("samples_per_s", "low", "high")),
    sa.Column("measured_per_s", sa.Double),
)
"""The table that versions 7 and 8 had."""


@pytest.fixture
def old(url: str) -> Iterator[sa.Engine]:
    """A store of version 7 with a run."""
    with closing(RunStore(url)) as store:
        store.create_run(RunConfig(name="old"))
    engine = sa.create_engine(url)
    with engine.begin() as db:
        PREDICTIONS.create(db)
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


def test_what_predictions_ran_are_runs_of_their_own(url: str) -> None:
    """A store of version 8, with a run, its headroom, and a prediction from it that was checked."""
    roles = {"headroom:1": ("A",), "prediction:1": ("loader-only", "check")}
    with closing(RunStore(url)) as store:
        store.create_run(RunConfig(name="profiled"))
        for key, of_group in roles.items():
            for role in of_group:
                store.create_run(RunConfig(name=role), group_key=key, role=role)
    engine = sa.create_engine(url)
    known = {"config": {}, "created_utc": "", "samples_per_s": 2.0, "low": 1.0, "high": 3.0}
    runs_of_it = {"profile_run_id": 1, "micro_run_id": 3, "verified_run_id": 4}
    with engine.begin() as db:
        PREDICTIONS.create(db)
        db.execute(sa.insert(PREDICTIONS).values(**runs_of_it, **known, measured_per_s=2.5))
        db.exec_driver_sql("alter table runs drop column device_idle_frac")
        db.exec_driver_sql("update alembic_version set version_num = '8'")
    with closing(RunStore(url)) as store:
        groups = {run.name: (run.group_key, run.role) for run in store.runs()}
        listed = [row.name for row in store.list_runs(RunQuery(), limit=10)]
    assert groups == {
        "profiled": ("", ""),
        "A": ("headroom:1", "A"),
        "loader-only": ("", ""),
        "check": ("", ""),
    }
    assert listed == ["check", "loader-only", "profiled"]
    with engine.connect() as db:
        assert not sa.inspect(db).has_table(PREDICTIONS.name)
        assert compare_metadata(MigrationContext.configure(db), metadata) == []
    engine.dispose()


def test_lists_show_the_idle_share_and_the_word_of_stored_verdicts(url: str) -> None:
    """A store of version 9, whose column of the idle share had all time that the device idled."""
    starved = Verdict(
        kind="inconclusive",
        device="gpu",
        why_none=NoVerdict("too_few_steps", n_steps=18, idle_frac=0.94),
        simulated=False,
    )
    launch_bound = Verdict(
        kind="launch-bound", device="gpu", idle_frac=0.01, paced_frac=0.73, simulated=False
    )
    with closing(RunStore(url)) as store:
        for verdict in (starved.to_dict(), launch_bound.to_dict(), {"kind": "input-bound"}, None):
            store.update_run(store.create_run(RunConfig()), verdict=verdict)
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.exec_driver_sql("alter table runs drop column device_idle_frac")
        kinds = {1: "inconclusive", 2: "launch-bound", 3: "input-bound", 4: ""}
        for run_id, kind in kinds.items():
            before = {"idle_frac": 0.06, "verdict_kind": kind}
            db.execute(sa.update(runs).where(runs.c.id == run_id).values(before))
        db.exec_driver_sql("update alembic_version set version_num = '9'")
    with closing(RunStore(url)) as store:
        rows = store.list_runs(RunQuery(descending=False), limit=9)
    assert [(row.verdict_kind, row.idle_frac, row.device_idle_frac) for row in rows] == [
        ("almost certainly starved", 0.94, 0.06),
        ("launch-bound", 0.73, 0.06),
        ("input-bound", None, 0.06),
        ("", None, 0.06),
    ]
    with engine.connect() as db:
        assert compare_metadata(MigrationContext.configure(db), metadata) == []
    engine.dispose()


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
