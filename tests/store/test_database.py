"""Opening the run store: where it lies, who wrote it, and what cannot be opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import STORE_VERSION, RunQuery, RunStore
from vitprof.store.migrations import bring_up_to_date


def refusal(**kwargs: Any) -> str:
    """The one line that opening a store is refused with."""
    with pytest.raises(StoreError) as caught:
        RunStore(**kwargs).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left_by(version: int, directory: Path) -> str:
    """A store as that version of it was left: one run, three of its steps, two samples of telemetry."""
    with closing(sqlite3.connect(directory / "old.sqlite")) as db:
        db.executescript((Path(__file__).parent / f"v{version}.sql").read_text())
    return f"sqlite:///{directory}/old.sqlite"


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_store_is_brought_up_to_date(version: int, tmp_path: Path) -> None:
    url = left_by(version, tmp_path)
    with closing(RunStore(url)) as store:
        (run,) = store.runs()
        assert run.name.startswith("memory, batch 128")
        assert (run.group_key, run.role, run.note) == ("", "", "")
        (row,) = store.list_runs(RunQuery(text="memory"), limit=9)
        assert (row.strategy, row.dataset, row.batch_size, row.tags) == ("memory", "digits", 128, ())
        assert run.summary is not None
        assert row.samples_per_s == run.summary.samples_per_s
        assert row.verdict_kind == (run.verdict["kind"] if run.verdict else "")
        series = store.steps(run.id)
        assert tuple(series) == STEP_COLUMNS
        assert series["compute_s"].min() > 0
        assert np.isnan(series["host_s"]).all() == (version == 1)
        new = store.create_run(RunConfig(), group_key="headroom:1", role="A")
        store.append_steps(new, [[1.0] * len(STEP_COLUMNS)])
        assert store.steps(new)["worker"].tolist() == [1.0]
        store.tag(run.id, ["old"])
    with closing(RunStore(url)) as again:
        assert [(r.group_key, r.role) for r in again.runs()] == [("headroom:1", "A"), ("", "")]
        assert again.tags(run.id) == ("old",)


@pytest.mark.slow
def test_a_store_from_before_a_column_gets_it(tmp_path: Path) -> None:
    """Version 3, of which there were stores with and without the kernel times of steps."""
    late = {"steps": ("kernel_s", "launch_idle_s"), "telemetry": ("gpu_sm_active_pct", "gpu_sm_occupancy_pct")}
    url = f"sqlite:///{tmp_path}/3.sqlite"
    with closing(RunStore(url)) as store:
        run_id = store.create_run(RunConfig())
    with closing(sqlite3.connect(tmp_path / "3.sqlite")) as db:
        for table, names in late.items():
            for name in names:
                db.execute(f"alter table {table} drop column {name}")
        db.execute("update vitprof_store set version = 3")
        db.commit()
    with closing(RunStore(url)) as store:
        store.append_steps(run_id, [[1.0] * len(STEP_COLUMNS)])
        store.append_telemetry(run_id, 0, [[1.0] * len(TELEMETRY_COLUMNS)])
        assert store.steps(run_id)["kernel_s"].tolist() == [1.0]
        assert store.telemetry(run_id)["gpu_sm_active_pct"].tolist() == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "late"), [(4, ("decode_wait_s", "device_prepare_s", "outside_s")), (5, ("outside_s",))]
)
def test_an_older_store_gets_the_columns_of_steps_that_it_lacks(
    tmp_path: Path, version: int, late: tuple[str, ...]
) -> None:
    path = tmp_path / "old.sqlite"
    with closing(RunStore(f"sqlite:///{path}")) as store:
        run = store.create_run(RunConfig())
        store.append_steps(run, [[1.0] * len(STEP_COLUMNS)])
    with closing(sqlite3.connect(path)) as db:
        for name in late:
            db.execute(f"alter table steps drop column {name}")
        db.execute(f"update vitprof_store set version = {version}")
        db.commit()
    with closing(RunStore(f"sqlite:///{path}")) as store:
        store.append_steps(run, [[2.0] * len(STEP_COLUMNS)])
        series = store.steps(run)
    assert tuple(series) == STEP_COLUMNS
    for name in late:
        assert series[name].tolist() == pytest.approx([np.nan, 2.0], nan_ok=True)


def schema_of(db: sa.Connection) -> dict[str, Any]:
    """Columns, keys and indexes of every table of the store."""
    found: dict[str, Any] = {}
    inspector = sa.inspect(db)
    for table in set(inspector.get_table_names()) - {"alembic_version", "vitprof_store"}:
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)}
        indexes = {(i["name"], *i["column_names"]) for i in inspector.get_indexes(table)}
        found[table] = columns, inspector.get_pk_constraint(table)["constrained_columns"], indexes
    return found


def sqlite_schema(path: Path) -> dict[str, Any]:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as db:
        found = schema_of(db)
    engine.dispose()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2])
def test_migrations_lead_to_the_tables_of_today(version: int, tmp_path: Path) -> None:
    """From nothing, and from each store that was left: a column without a migration shows here."""
    RunStore(f"sqlite:///{tmp_path}/new.sqlite").close()
    if version:
        RunStore(left_by(version, tmp_path)).close()
    else:
        engine = sa.create_engine(f"sqlite:///{tmp_path}/old.sqlite")
        with engine.begin() as db:
            bring_up_to_date(db, 0)
        engine.dispose()
    assert sqlite_schema(tmp_path / "old.sqlite") == sqlite_schema(tmp_path / "new.sqlite")
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as db:
        assert db.execute("select version_num from alembic_version").fetchall() == [(str(STORE_VERSION),)]


@pytest.mark.slow
def test_the_old_store_is_kept_beside_it(tmp_path: Path) -> None:
    url = left_by(1, tmp_path)
    (tmp_path / "old.sqlite.version-1").write_text("of another time")
    with closing(RunStore(url)) as store:
        kept = tmp_path / "old.sqlite.version-1-2"
        assert store.migrated.endswith(f"(store version 1 to {STORE_VERSION}); the old one is kept as {kept}")
    with closing(RunStore(url)) as again:
        assert again.migrated == ""
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.rename(tmp_path / "old.sqlite")  # back to it
    with closing(RunStore(url)) as back:
        assert back.migrated
        assert back.n_steps(1) == 3


def test_without_room_for_the_copy_the_old_store_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = left_by(1, tmp_path)
    before = (tmp_path / "old.sqlite").read_bytes()
    write = Path.replace

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert "the copy of it to keep beside it (0.0 MB) failed" in refusal(url=url)
    monkeypatch.setattr(Path, "replace", write)
    assert sorted(path.name for path in tmp_path.iterdir() if "sqlite-" not in path.name) == ["old.sqlite"]
    assert len((tmp_path / "old.sqlite").read_bytes()) == len(before)
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as db:
        assert db.execute("select version from vitprof_store").fetchone() == (1,)


@pytest.mark.slow
def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(db: sa.Connection, found: int) -> None:
        bring_up_to_date(db, found)
        raise sa.exc.ProgrammingError("create", {}, Exception("a defect"))

    url = left_by(1, tmp_path)
    before = sqlite_schema(tmp_path / "old.sqlite")
    monkeypatch.setattr("vitprof.store.database.bring_up_to_date", fail)
    assert refusal(url=url).endswith("failed: a defect")
    assert sqlite_schema(tmp_path / "old.sqlite") == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "with space", "what? is#this%41&that", "ü🚀", "file:x"])
def test_the_default_is_sqlite_in_wal_mode_under_home_whatever_home_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    home = tmp_path / name / "home"
    monkeypatch.setenv("VITPROF_HOME", str(home))
    with closing(RunStore()) as store:
        run_id = store.create_run(RunConfig(name="kept"))
        assert (home / "runs.sqlite").is_file()
        assert (home / "runs.sqlite-wal").is_file()
        with closing(sqlite3.connect(home / "runs.sqlite")) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with closing(RunStore()) as store:
        assert store.run(run_id).name == "kept"


def test_vitprof_db_names_another_database(monkeypatch: pytest.MonkeyPatch, vitprof_home: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{tmp_path}/other.db")
    RunStore().close()
    assert (tmp_path / "other.db").is_file()
    assert not vitprof_home.exists()


@pytest.fixture
def other_version(tmp_path: Path) -> Path:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table vitprof_store (version integer primary key)")
        db.execute("insert into vitprof_store values (?)", (STORE_VERSION + 1,))
        db.commit()
    return path


def test_a_store_of_another_version_is_refused_and_left_as_it_is(other_version: Path) -> None:
    line = refusal(url=f"sqlite:///{other_version}")
    assert f"store version {STORE_VERSION + 1}, not {STORE_VERSION}" in line
    assert str(other_version) in line
    assert "set VITPROF_DB" in line
    with closing(sqlite3.connect(other_version)) as db:
        assert db.execute("select name from sqlite_master where type = 'table'").fetchall() == [("vitprof_store",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "'nonsense' is not an SQLAlchemy URL; give one such as sqlite:////"),
        ("nosuch://me:s3cret@host/db", "'nosuch://me:***@host/db' cannot be used: Can't load plugin"),
        ("mysql+nosuch://me:s3cret@host/db", "cannot be used: Can't load plugin"),
        ("mysql+aiomysql://me:s3cret@host/db", "'mysql+aiomysql://me:***@host/db' cannot be used: No module named"),
        ("postgresql//me:s3cret@host/db", "'***@host/db' is not an SQLAlchemy URL"),
        ("postgresql://me:s3cret@host:port/db", "'***@host:port/db' is not an SQLAlchemy URL"),
        ("postgresql://me:p@s3cret:1@host:port/db", "'***@host:port/db' is not an SQLAlchemy URL"),
        ("sqlite:////no/such/directory/runs.db", "sqlite:////no/such/directory/runs.db failed: unable to open"),
        ("sqlite:////proc/version", "failed: unable to open database file"),
    ],
)
def test_an_unusable_vitprof_db_is_one_line_without_the_password(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("VITPROF_DB", url)
    line = refusal()
    assert said in line
    assert "s3cret" not in line
    assert line.startswith(("VITPROF_DB: ", "the run store "))


def test_a_directory_or_another_file_in_the_way_is_one_line_and_stays(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    assert "unable to open database file" in refusal(url=f"sqlite:///{tmp_path}/directory")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8 not a database " * 1000)
    line = refusal(url=f"sqlite:///{tmp_path}/photo.jpg")
    assert line == f"the run store sqlite:///{tmp_path}/photo.jpg failed: file is not a database"
    assert (tmp_path / "photo.jpg").read_bytes() == b"\xff\xd8 not a database " * 1000


def test_a_read_only_store_is_one_line(read_only_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "failed: unable to open database file" in refusal(url=f"sqlite:///{read_only_dir}/runs.sqlite")
    monkeypatch.setenv("VITPROF_HOME", str(read_only_dir))
    with pytest.raises(Exception, match=r"^cannot write to .*; set VITPROF_HOME to a directory that can be"):
        RunStore()


def test_a_store_that_may_only_be_read_can_be_read_and_writing_is_one_line(store: RunStore, tmp_path: Path) -> None:
    run_id = store.create_run(RunConfig(name="kept"))
    with closing(RunStore(f"sqlite:///file:{tmp_path}/runs.sqlite?mode=ro&uri=true")) as reader:
        assert reader.run(run_id).name == "kept"
        with pytest.raises(StoreError, match=r"^the run store .* failed: attempt to write a readonly database$"):
            reader.create_run(RunConfig())


def test_a_store_that_another_program_keeps_locked_is_one_line_and_works_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with closing(RunStore(f"sqlite:///{path}?timeout=0.01")) as store, closing(sqlite3.connect(path)) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreError, match=r"failed: database is locked$"):
            store.create_run(RunConfig())
        assert store.runs() == []  # reading goes on
        other.rollback()
        assert store.create_run(RunConfig()) == 1
