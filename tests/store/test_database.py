"""Opening the run store: where it is, who wrote it, what cannot be opened, and what can only be read."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Call
from tests.conftest import NOBODY
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import StoreError
from vitprof.jobs.finalise import settle_interrupted
from vitprof.store import STORE_VERSION, RunStore


def refusal(**kwargs: Any) -> str:
    """The one line that opening a store is refused with."""
    with pytest.raises(StoreError) as caught:
        RunStore(**kwargs).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_default_is_sqlite_in_wal_mode_under_any_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("plain", "with space", "what? is#this%41&that", "ü🚀", "file:x"):
        home = tmp_path / name / "home"
        monkeypatch.setenv("VITPROF_HOME", str(home))
        with closing(RunStore()) as store:
            run_id = store.create_run(RunConfig(name="kept"))
            assert (home / "recordings.sqlite-wal").is_file()
            with closing(sqlite3.connect(home / "recordings.sqlite")) as db:
                assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with closing(RunStore()) as store:
            assert store.run(run_id).name == "kept"


def stamped(path: Path, table: str, column: str, version: int) -> bytes:
    """The bytes of a store of another version."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"create table {table} ({column})")
        db.execute(f"insert into {table} values (?)", (version,))
        db.commit()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("table", "column", "version"),
    [("vitprof_store", "version", 6), ("alembic_version", "version_num", STORE_VERSION + 1)],
)
def test_a_store_of_another_version_is_left_as_it_is(
    tmp_path: Path, table: str, column: str, version: int
) -> None:
    path = tmp_path / "other.db"
    before = stamped(path, table, column, version)
    line = refusal(url=f"sqlite:///{path}")
    for said in (f"store version {version}, not {STORE_VERSION}", str(path), "set VITPROF_DB"):
        assert said in line
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select name from sqlite_master where type = 'table'").fetchall() == [
            (table,)
        ]
        db.execute("pragma journal_mode=delete")
    assert len(path.read_bytes()) == len(before)


def test_an_older_store_in_the_home_is_named_once(
    vitprof_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitprof_home.mkdir()
    old = vitprof_home / "runs.sqlite"
    before = stamped(old, "vitprof_store", "version", 6)
    for expected in (
        f"vitprof: {old} is of an earlier version and is left unchanged; new runs are stored in",
        "",
    ):
        with closing(RunStore()) as store:
            settle_interrupted(store)
        assert capsys.readouterr().err.startswith(expected)
        assert store.notice.startswith(expected.removeprefix("vitprof: "))
    assert old.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "'nonsense' is not an SQLAlchemy URL; give one such as sqlite:////"),
        (
            "nosuch://me:s3cret@host/db",
            "'nosuch://me:***@host/db' cannot be used: Can't load plugin",
        ),
        ("mysql+nosuch://me:s3cret@host/db", "cannot be used: Can't load plugin"),
        (
            "mysql+aiomysql://me:s3cret@host/db",
            "'mysql+aiomysql://me:***@host/db' cannot be used: No module named",
        ),
        ("postgresql//me:s3cret@host/db", "'***@host/db' is not an SQLAlchemy URL"),
        ("postgresql://me:s3cret@host:port/db", "'***@host:port/db' is not an SQLAlchemy URL"),
        ("postgresql://me:p@s3cret:1@host:port/db", "'***@host:port/db' is not an SQLAlchemy URL"),
        (
            "postgresql://me:p@s3cret@host/db",
            "VITPROF_DB: the password for 'host' has an @ in it: write %40 for it",
        ),
        ("nosuch://host/db?user=me&password=s3cret", "?password=***&user=me' cannot be used"),
        ("nonsense?password=s3cret", "'nonsense?password=***' is not an SQLAlchemy URL"),
        (
            "sqlite:////no/such/s.db?password=s3cret",
            "such/s.db?password=*** failed: unable to open",
        ),
        (
            "sqlite:////no/such/directory/runs.db",
            "sqlite:////no/such/directory/runs.db failed: unable to open",
        ),
    ],
)
def test_an_unusable_url_is_one_line_without_password(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("VITPROF_DB", url)
    line = refusal()
    assert said in line
    assert "s3cret" not in line
    assert line.startswith(("VITPROF_DB: ", "the run store "))


def test_a_file_of_the_system_is_no_run_store() -> None:
    """Root may open it for writing, where SQLite fails; for anybody else it can only be read."""
    reason = "can only be read here, and is not a run store"
    if os.access("/proc/version", os.W_OK):
        reason = "failed: unable to open database file"
    assert refusal(url="sqlite:////proc/version").endswith(reason)


def test_a_directory_or_another_file_in_the_way_is_one_line_and_stays(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    assert "unable to open database file" in refusal(url=f"sqlite:///{tmp_path}/directory")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8 not a database " * 1000)
    line = refusal(url=f"sqlite:///{tmp_path}/photo.jpg")
    assert line == f"the run store sqlite:///{tmp_path}/photo.jpg failed: file is not a database"
    assert (tmp_path / "photo.jpg").read_bytes() == b"\xff\xd8 not a database " * 1000


def test_a_store_that_another_program_keeps_locked_is_one_line_and_works_afterwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.sqlite"
    with (
        closing(RunStore(f"sqlite:///{path}?timeout=0.01")) as store,
        closing(sqlite3.connect(path)) as other,
    ):
        other.execute("begin immediate")
        with pytest.raises(StoreError, match=r"failed: database is locked$"):
            store.create_run(RunConfig())
        assert store.runs() == []  # reading goes on
        other.rollback()
        assert store.create_run(RunConfig()) == 1


@pytest.fixture
def filled(read_only_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a home with a run that this test can only read."""

    def fill(changed: Callable[[Path], object] = lambda path: None) -> Path:
        if os.getuid() == 0:
            os.seteuid(0)
        read_only_dir.chmod(0o755)
        path = read_only_dir / "recordings.sqlite"
        with closing(RunStore(f"sqlite:///{path}")) as store:
            run_id = store.create_run(resolve(RunConfig(name="kept")))
            store.update_run(run_id, status="running", owner_started=1.0)
        changed(path)
        read_only_dir.chmod(0o555)
        if os.getuid() == 0:
            os.seteuid(NOBODY)
        monkeypatch.setenv("VITPROF_HOME", str(read_only_dir))
        return path

    return fill


def leave_changes(path: Path) -> None:
    """As a program that was killed leaves them: in the -wal file."""
    db = sqlite3.connect(path)
    db.execute("update runs set note = 'changed last'")
    db.commit()
    copies = [Path(f"{path}{suffix}.copy") for suffix in ("-wal", "-shm")]
    for copy in copies:
        shutil.copy(copy.with_suffix(""), copy)
    db.close()
    for copy in copies:
        copy.rename(copy.with_suffix(""))
        copy.with_suffix("").chmod(0o644)


def test_it_is_read_and_left_as_it_is(filled: Callable[..., Path]) -> None:
    before = sorted(path.name for path in filled().parent.iterdir())
    with closing(RunStore()) as store:
        assert store.read_only
        assert store.run(1).name == "kept"
        settle_interrupted(store)  # its program is gone; who may write finds out
        assert store.run(1).status == "running"
        with pytest.raises(
            StoreError, match=r"recordings\.sqlite can only be read here: runs can be seen, not"
        ):
            store.create_run(resolve(RunConfig()))
        assert sorted(path.name for path in store.file.parent.iterdir()) == before


def test_with_changes_that_lie_beside_it(filled: Callable[..., Path]) -> None:
    filled(leave_changes)
    with closing(RunStore()) as store:
        assert store.run(1).note == "changed last"


def test_changes_that_cannot_be_read_are_not_passed_over(filled: Callable[..., Path]) -> None:
    path = filled(lambda path: (leave_changes(path), Path(f"{path}-shm").unlink()))
    said = refusal()
    assert said.startswith(
        f"{path} can only be read here, and its last changes are in recordings.sqlite-wal, which"
    )
    assert said.endswith(
        "copy both to a directory that can be written to, and set VITPROF_DB to that copy"
    )


@pytest.mark.parametrize(
    ("column", "byte"), [("config", b"{"), ("spark", b"{"), ("facts", b"\xff"), ("name", b"\xff")]
)
def test_a_store_with_other_bytes_is_one_line(
    vitprof_home: Path, call: Call, column: str, byte: bytes
) -> None:
    with closing(RunStore()) as store:
        store.create_run(resolve(RunConfig()))
        assert store.file is not None
        path = store.file
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"update runs set {column} = cast(? as text)", (b"kept" + byte,))
        db.commit()
    for command in (["runs"], ["runs", "1", "--json"], ["export", "1"]):
        status, _, err = call(*command)
        assert status in (0, 1)
        assert err.count("\n") <= 1
        assert "Traceback" not in err
