"""The database behind the store: opened, and used in transactions.

`VITPROF_DB` names another database by SQLAlchemy URL; the default is `recordings.sqlite` under `VITPROF_HOME`.

SQLite in WAL mode writes next to the file even to read it. Where it cannot (a read-only file system,
another user's directory), the URL must say so: `mode=ro` where the last changes are still in the -wal
file (SQLite then needs the -shm file too), `immutable` where there are none
(https://sqlite.org/wal.html#read_only_databases).
"""

import contextlib
import datetime as dt
import json
import os
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from vitprof.errors import ConfigError, StoreAwayError, StoreError, one_line
from vitprof.home import OLD_STORE_FILE, STORE_FILE, ensure_dir, home, private_file
from vitprof.names import masked
from vitprof.program import install_command
from vitprof.store.migrations import is_older, may_only_read, migrate, why_not_opened

STORE_VERSION = 9
"""Version of these tables, stamped as Alembic stamps a revision. A later one needs a file in `migrations`."""
OPENING = 0x7669_7470
"""Number of the lock of a PostgreSQL database that a program holds while it creates or migrates the tables."""
MAX_ID = 2**31 - 1
"""The largest id that an INTEGER of every database can hold; drivers refuse larger numbers with errors of
their own."""


metadata = sa.MetaData()
versions = sa.Table(
    "alembic_version", metadata, sa.Column("version_num", sa.String(32), primary_key=True)
)
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False, index=True),
    # What lists show and search comes before the long values: a scan need not read through those.
    *(
        sa.Column(name, sa.String, nullable=False, default="", server_default="")
        for name in ("strategy", "dataset")
    ),
    sa.Column("batch_size", sa.Integer, nullable=False, default=0, server_default="0"),
    sa.Column("device", sa.String, nullable=False, default="", server_default=""),
    *(sa.Column(name, sa.Double) for name in ("samples_per_s", "idle_frac")),
    *(
        sa.Column(name, sa.String, nullable=False, default="", server_default="")
        for name in ("verdict_kind", "note")
    ),
    sa.Column("spark", sa.JSON(none_as_null=True)),
    sa.Column("stage", sa.String, nullable=False, default=""),
    sa.Column("progress", sa.Double),
    sa.Column("message", sa.String, nullable=False, default=""),
    sa.Column("created_utc", sa.String, nullable=False),
    *(sa.Column(name, sa.Double) for name in ("t_origin_s", "training_since_s")),
    sa.Column("config", sa.JSON, nullable=False),
    *(sa.Column(name, sa.JSON, nullable=False, default=dict) for name in ("environment", "facts")),
    *(sa.Column(name, sa.JSON, nullable=False, default=list) for name in ("phases", "notices")),
    *(sa.Column(name, sa.JSON) for name in ("summary", "verdict")),
    sa.Column("group_key", sa.String, nullable=False, default="", server_default="", index=True),
    sa.Column("role", sa.String, nullable=False, default="", server_default=""),
    sa.Column("error", sa.String, nullable=False, default=""),
    sa.Column("owner_user", sa.String, nullable=False, default="", server_default="", index=True),
    sa.Column("project", sa.String, nullable=False, default="", server_default=""),
    sa.Column("owner_host", sa.String, nullable=False),
    sa.Column("owner_pid", sa.Integer, nullable=False),
    sa.Column("owner_started", sa.Double, nullable=False),
    # ids are never reused: a shared link must not lead to another run
    sqlite_autoincrement=True,
)
series = sa.Table(
    "series",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # the number of its first row; with that of its last one, finds the chunks with new rows for a page
    sa.Column("chunk", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sa.Column("merged", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.LargeBinary, nullable=False),
)
run_tags = sa.Table(
    "run_tags",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.String, primary_key=True, index=True),
)
tournaments = sa.Table(
    "tournaments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("state", sa.JSON, nullable=False, default=dict),
    # ids are never reused: a new tournament must not inherit a deleted one's trials
    sqlite_autoincrement=True,
)
LISTED = ("strategy", "dataset", "batch_size", "device")
"""Columns of `runs` that repeat fields of the run's config."""
# with it the newest runs of a group are read in order, without a sort
FIRST_PAGE = sa.Index("ix_runs_group_key_id", runs.c.group_key, runs.c.id)


WAL_ATTEMPTS = 10
"""How often to try to switch a new file to WAL while other programs do the same."""
Stored = TypeVar("Stored")


def database_url() -> str | sa.URL:
    """Returns `VITPROF_DB`, or the URL of an SQLite file under `VITPROF_HOME`, which is created."""
    named = os.environ.get("VITPROF_DB")
    if named:
        return named
    path = home() / STORE_FILE
    # a file that is there can be read even where the directory cannot be written
    if not os.path.isfile(path):
        ensure_dir(home())
    # No text for the path: a "?" in it would begin the query of an URL.
    return sa.URL.create("sqlite", database=str(private_file(path)))


def _parse(url: str | sa.URL) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # their messages can quote part of the password
        _, at, place = str(url).rpartition("@")
        shown = masked(f"***@{place}" if at else place)
        raise StoreError(
            f"VITPROF_DB: {shown!r} is not an SQLAlchemy URL; give one such as sqlite:////home/me/runs.sqlite"
        ) from None
    # as others write it; the tests' driver is psycopg 3
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    host = parsed.host or ""
    if "@" in host:
        shown = host.rpartition("@")[2]
        raise StoreError(f"VITPROF_DB: the password for {shown!r} has an @ in it: write %40 for it")
    return parsed


def _on_connect(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for attempt in range(1, WAL_ATTEMPTS + 1):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            # another program is switching to WAL; SQLite does not wait for that
            if attempt == WAL_ATTEMPTS:
                raise
            # but it does wait for a write lock
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("COMMIT")
    cursor.execute("PRAGMA synchronous=NORMAL")
    # some builds overwrite what is deleted: merged chunks, twice a second
    cursor.execute("PRAGMA secure_delete=FAST")
    cursor.close()


def _version(db: sa.Connection) -> str | None:
    """Returns the version of the store's tables; None for a database without them."""
    tables = sa.inspect(db)
    # the second one up to version 6
    for table, column in ((versions.name, "version_num"), ("vitprof_store", "version")):
        if tables.has_table(table):
            query: sa.Select[Any] = sa.select(sa.column(column)).select_from(sa.table(table))
            return str(db.execute(query).scalar())
    return None


def sqlite_file(url: sa.URL) -> Path | None:
    """Returns the file of an SQLite database; None for one in memory, and for any other database."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    name = url.database
    if name.startswith("file:") and "uri" in url.query:
        name = urllib.parse.unquote(name.removeprefix("file:"))
        if "memory" in url.query.get("mode", ""):
            return None
    return Path(name)


def cannot_be_written(path: Path) -> bool:
    """Returns whether a file exists, and it or its directory can only be read."""
    if not path.is_file():
        return False
    effective = {}
    # the rights of the effective user, where the system can tell them
    if os.access in os.supports_effective_ids:
        effective["effective_ids"] = True
    return not all(os.access(each, os.W_OK, **effective) for each in (path, path.parent))


def reading_url(url: sa.URL, path: Path) -> sa.URL:
    """Returns the URL that reads a file which cannot be written, see the module's docstring.

    Raises `StoreError` where its last changes cannot be read.
    """
    wal = Path(f"{path}-wal")
    shm = Path(f"{path}-shm")
    has_changes = wal.is_file() and wal.stat().st_size > 0
    if has_changes and not shm.is_file():
        raise StoreError(
            f"{path} can only be read here, and its last changes are in {wal.name}, which cannot be read without "
            "writing beside it: copy both to a directory that can be written to, and set VITPROF_DB to that copy"
        )
    how = {"mode": "ro"} if has_changes else {"immutable": "1"}
    name = f"file:{urllib.parse.quote(str(path.absolute()))}"
    kept = {key: value for key, value in url.query.items() if key == "timeout"}
    return url.set(database=name, query={**kept, **how, "uri": "true"})


def now_utc(days_ago: float = 0) -> str:
    """Returns the time, or that of some days ago, as it is stored: ISO 8601 with a Z."""
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


VALUES_AT_ONCE = 500
"""Values in one query: SQLite before version 3.32 takes at most 999, later ones 32,766, and PostgreSQL 65,535
(https://sqlite.org/limits.html)."""
V = TypeVar("V")


def in_parts(values: Iterable[V]) -> Iterator[Sequence[V]]:
    """Yields values, of which there may be any number, in parts that a query takes."""
    listed = list(values)
    for first in range(0, len(listed), VALUES_AT_ONCE):
        yield listed[first : first + VALUES_AT_ONCE]


def inserted_id(inserted: sa.CursorResult[Any]) -> int:
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


class MissingError(StoreError):
    """Raised where nothing has the id that was asked for."""


class UnreadableError(StoreError):
    """Raised for what another version of vitprof wrote. It is still listed, and can be deleted."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Raises `UnreadableError` where the block shows that this version cannot read `what` ("run 3")."""
    try:
        yield
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnreadableError(
            f"{what} was written by another version of vitprof and cannot be read ({one_line(error)}); open it with "
            "that version, or delete it"
        ) from error


def readable(
    rows: Iterable[sa.Row[Any]], read: Callable[[sa.Row[Any]], Stored]
) -> Iterator[Stored]:
    """Yields rows as `read` returns them, without those that another version wrote and this one cannot read."""
    for row in rows:
        with contextlib.suppress(StoreError):
            yield read(row)


class Database:
    """An open database with the store's tables. Raises `StoreError`."""

    def __init__(self, url: str | None = None) -> None:
        parsed = _parse(url or database_url())
        self.url = masked(parsed.render_as_string(hide_password=True))
        self.file = sqlite_file(parsed)
        """The file of an SQLite database; None for any other."""
        where = parsed.set(
            drivername=parsed.get_backend_name(), username=None, password=None, query={}
        )
        self.identity = where.render_as_string()
        """A name that tells this database from others, on this machine."""
        if self.file is not None:
            self.identity = f"sqlite:{self.file.resolve()}"
        self.read_only = self.file is not None and cannot_be_written(self.file)
        """Whether this program may only read the database: the file or its directory cannot be written,
        or the server gives this user no other right."""
        self.notice = ""
        """A line for the user about an older store, which is not used; "" without one, and once it was
        shown."""
        self.refuses: Callable[[], str] = str
        """Returns why the current user may not change anything; "" where that is allowed."""
        if self.read_only and self.file is not None:
            parsed = reading_url(parsed, self.file)
        try:
            # A server may have been restarted since a connection was last used: test it before each use.
            self._engine = sa.create_engine(parsed, pool_pre_ping=self.file is None)
        except (sa.exc.ArgumentError, ImportError) as error:
            problem = f"VITPROF_DB: {self.url!r} cannot be used: {masked(str(error))}"
            if parsed.drivername == "postgresql+psycopg":
                problem += f"; {install_command('postgres')}"
            raise StoreError(problem) from error
        if self._engine.dialect.name == "sqlite" and not self.read_only:
            sa.event.listen(self._engine, "connect", _on_connect)
        try:
            self._open_tables()
        except StoreError:
            self.close()
            raise

    def _open_tables(self) -> None:
        """Creates the tables, or migrates them; does not write to a store of this version."""
        with self.transaction() as db:
            version = _version(db)
            if version is not None and may_only_read(db, runs.name):
                self.read_only = True
        if version is None and self.read_only:
            raise StoreError(f"{self.url} can only be read here, and is not a run store")
        is_due = version is None or is_older(version, STORE_VERSION)
        if is_due and not self.read_only:
            # two programs may open a store at the same moment: the second one waits, and looks again
            with self.writing() as db:
                if db.dialect.name == "postgresql":
                    db.execute(sa.select(sa.func.pg_advisory_xact_lock(OPENING)))
                version = self._made_or_migrated(db, _version(db))
        if version != str(STORE_VERSION):
            raise StoreError(why_not_opened(self.url, version, STORE_VERSION))

    def _made_or_migrated(self, db: sa.Connection, version: str | None) -> str | None:
        if version is None:
            metadata.create_all(db)
            db.execute(sa.insert(versions).values(version_num=str(STORE_VERSION)))
            self._name_the_old_one()
        elif is_older(version, STORE_VERSION):
            migrate(db)
        return _version(db)

    def _name_the_old_one(self) -> None:
        if self.file is not None and self.file.name == STORE_FILE:
            old = self.file.with_name(OLD_STORE_FILE)
            if old.is_file():
                self.notice = f"{old} is of an earlier version and is left as it is; new runs are stored in {self.file}"

    def why_not_changed(self) -> str:
        """Returns why no run can be made or changed here; "" where one can."""
        if self.read_only:
            return f"{self.url} can only be read here: runs can be seen, not made or changed"
        return self.refuses()

    def check_may_change(self) -> None:
        """Raises `StoreError` where no run can be made or changed."""
        reason = self.why_not_changed()
        if reason:
            raise StoreError(reason)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yields a connection whose changes are committed at the end of the block, all or none.

        Raises `StoreError`; `StoreAwayError` where the database cannot be reached or does not answer, so
        that the same may work later.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            why = masked(str(error.orig)).strip().partition("\n")[0]
            raise StoreAwayError(
                f"the run store {self.url} failed: {masked(str(error.orig))}", why
            ) from error
        except sa.exc.TimeoutError as error:
            # all connections are in use, waiting
            why = "it does not answer"
            raise StoreAwayError(f"the run store {self.url} failed: {why}", why) from error
        except sa.exc.DBAPIError as error:
            raise StoreError(
                f"the run store {self.url} failed: {masked(str(error.orig))}"
            ) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"the run store {self.url} is damaged: {error}") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yields the connection of a transaction that holds the write lock from the start.

        So nobody changes what it reads. That holds for SQLite; queries of other databases need
        `with_for_update`. Raises `StoreError`.
        """
        with self.transaction() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("BEGIN IMMEDIATE")
            yield db

    def row(
        self, query: sa.Select[Any], key: sa.Column[int], value: int, otherwise: str
    ) -> sa.Row[Any]:
        """Returns the row of `query` whose id `key` has this value.

        Raises `MissingError` with the line `otherwise`.
        """
        row = None
        with self.transaction() as db:
            if 0 < value <= MAX_ID:
                row = db.execute(query.where(key == value)).one_or_none()
        if row is None:
            raise MissingError(otherwise)
        return row

    def close(self) -> None:
        self._engine.dispose()
