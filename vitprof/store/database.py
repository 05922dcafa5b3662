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
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from vitprof.attempts import Attempt
from vitprof.errors import (
    ConfigError,
    StoreAwayError,
    StoreError,
    StoreGoneError,
    StoreOverwrittenError,
    one_line,
)
from vitprof.home import OLD_STORE_FILE, STORE_FILE, ensure_dir, home, private_file
from vitprof.masking import masked
from vitprof.program import install_command
from vitprof.store import server, store_file
from vitprof.store.migrations import is_older, may_only_read, migrate, why_not_opened

STORE_VERSION = 10
"""Version of these tables, stamped as Alembic stamps a revision. A later one needs a file in `migrations`."""
OPENING = 0x7669_7470
"""Number of the lock of a PostgreSQL database that a program holds while it creates or migrates the tables."""
MAX_ID = 2**31 - 1
"""The largest id that an INTEGER of every database can hold; drivers refuse larger numbers with errors of
their own."""


OPEN_WITHIN_S = 15.0
"""How long (s) to wait for a database that is to be opened: a server has `CONNECT_WITHIN_S` of it, another
program's lock of an SQLite file 5 s for each of two steps. What else takes long is a file system."""
MIGRATED_WITHIN_S = 600.0
"""How long (s) a server may take for a step that creates or migrates the tables, or to wait for another
program that does so."""
NO_ANSWER = "it does not answer"
"""Why a store is unavailable that does not even say why: a file system or a server hangs."""
LOOK = "see whether it can be reached from here, or set VITPROF_DB to another one"

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
    *(sa.Column(name, sa.Double) for name in ("samples_per_s", "idle_frac", "device_idle_frac")),
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
    """Returns `VITPROF_DB`, or the URL of an SQLite file under `VITPROF_HOME`."""
    named = os.environ.get("VITPROF_DB")
    if named:
        return named
    # No text for the path: a "?" in it would begin the query of an URL.
    return sa.URL.create("sqlite", database=str(home() / STORE_FILE))


def _make_own_file(path: Path) -> None:
    """Creates the store's file in the home, for its owner only."""
    # a file that is there can be read even where the directory cannot be written
    if not os.path.isfile(path):
        ensure_dir(home())
    private_file(path)


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
            "writing next to it: copy both to a directory that can be written to, and set VITPROF_DB to that copy"
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
    """A database with the store's tables. Raises `StoreError`."""

    def __init__(self, url: str | None = None, *, opens: bool = True) -> None:
        """`opens`: opens it now. Otherwise nothing is asked of server or disk until `open`."""
        self._is_own = not url and not os.environ.get("VITPROF_DB")
        """Whether it is the file in the home, which vitprof makes."""
        self._parsed = _parse(url or database_url())
        self.url = masked(self._parsed.render_as_string(hide_password=True))
        self.file = sqlite_file(self._parsed)
        """The file of an SQLite database; None for any other."""
        where = self._parsed.set(
            drivername=self._parsed.get_backend_name(), username=None, password=None, query={}
        )
        self.identity = where.render_as_string()
        """A name that tells this database from others, on this machine."""
        if self.file is not None:
            self.identity = f"sqlite:{os.path.abspath(self.file)}"
        self.identities = {self.identity}
        """All names that programs may have given it: some know before they open it where its file really
        is, and some do not."""
        self.read_only = False
        """Whether this program may only read the database: the file or its directory cannot be written,
        or the server gives this user no other right."""
        self.notice = ""
        """A line for the user about an older store, which is not used; "" without one, and once it was
        shown."""
        self.refuses: Callable[[], str] = str
        """Returns why the current user may not change anything; "" where that is allowed."""
        self._engine: sa.Engine | None = None
        self._opened: store_file.StoreFile | None = None
        """The file of an SQLite database that was opened and may be written."""
        self._lost: StoreOverwrittenError | None = None
        """Why this program may not use the file any more."""
        self._opening: Attempt[None] | None = None
        """The last time that somebody began to open it."""
        self._beginning = threading.Lock()
        """Held while a thread looks whether it has to begin, which takes no time."""
        self._has_answered = threading.Event()
        """Set once the database has said of which version it is, or opening it is over."""
        if opens:
            self.open()

    def open(self, within_s: float | None = None) -> None:
        """Opens the database, unless it is open.

        Raises `StoreError`; `StoreAwayError` also where it has not answered `within_s` (default:
        `OPEN_WITHIN_S`). It may still do so: opening it goes on, and the next call waits for that.
        """
        if within_s is None:
            within_s = OPEN_WITHIN_S + self._own_limit_s()
        with self._beginning:
            opening = self._opening
            if opening is None:
                opening = self._begin_to_open()
        if opening is None:
            return
        if not self._has_answered.wait(within_s):
            raise self._unanswered()
        try:
            # bringing an older one to this version takes as long as it takes
            opening.result(None)
        except BaseException:
            with self._beginning:
                # another thread may have begun again, and succeeded
                if self._opening is opening:
                    self._opening = None
            raise

    def _begin_to_open(self) -> Attempt[None] | None:
        """Begins to open the database; None where it is open at once."""
        self._has_answered.clear()
        if self._parsed.get_backend_name() == "sqlite" and self.file is None:
            # what is in memory belongs to the thread that made it
            self._open()
            return None
        self._opening = Attempt(self._open_and_tell, "vitprof-store")
        return self._opening

    def _unanswered(self) -> StoreAwayError:
        return StoreAwayError(f"the run store {self.url} does not answer: {LOOK}", NO_ANSWER)

    def _own_limit_s(self) -> float:
        """Returns how long (s) the URL itself lets its driver wait, for a lock or for a server."""
        named = [self._parsed.query.get(name, "0") for name in ("timeout", "connect_timeout")]
        try:
            return sum(float(value) for value in named if isinstance(value, str))
        except ValueError:  # the driver says so
            return 0.0

    def _open_and_tell(self) -> None:
        try:
            self._open()
        finally:
            self._has_answered.set()

    def _open(self) -> None:
        parsed = self._parsed
        if self.file is not None:
            if self._is_own:
                _make_own_file(self.file)
            self.identity = f"sqlite:{self.file.resolve()}"
            self.identities.add(self.identity)
            self.read_only = cannot_be_written(self.file)
            if self.read_only:
                parsed = reading_url(parsed, self.file)
        try:
            # A server may have been restarted since a connection was last used: test it before each use.
            self._engine = sa.create_engine(
                parsed,
                pool_pre_ping=self.file is None,
                connect_args=server.connect_arguments(parsed),
            )
        except (sa.exc.ArgumentError, ImportError) as error:
            problem = f"VITPROF_DB: {self.url!r} cannot be used: {masked(str(error))}"
            if parsed.drivername == "postgresql+psycopg":
                problem += f"; {install_command('postgres')}"
            raise StoreError(problem) from error
        if self._engine.dialect.name == "sqlite" and not self.read_only:
            sa.event.listen(self._engine, "connect", _on_connect)
        server.limit_answers(self._engine)
        self._opened = None
        try:
            self._open_tables()
            if self.file is not None and not self.read_only:
                with self._begun() as db:
                    tag = store_file.tag_of(db)
                self._opened = store_file.StoreFile(self.file, tag)
        except BaseException:
            self._engine.dispose()
            self._engine = None
            raise

    def _open_tables(self) -> None:
        """Creates the tables, or migrates them; does not write to a store of this version."""
        with self.transaction() as db:
            version = _version(db)
            if version is not None and may_only_read(db, runs.name):
                self.read_only = True
        self._has_answered.set()
        if version is None and self.read_only:
            raise StoreError(f"{self.url} can only be read here, and is not a run store")
        is_due = version is None or is_older(version, STORE_VERSION)
        if is_due and not self.read_only:
            # two programs may open a store at the same moment: the second one waits, and looks again
            with self.writing() as db:
                server.wait_longer(db, MIGRATED_WITHIN_S)
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
                earlier = f"{old} is of an earlier version and is left unchanged"
                self.notice = f"{earlier}; new runs are stored in {self.file}"

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

    def _check_file(self) -> None:
        """Raises `StoreGoneError` where the store's file is not the one that was opened any more, or has
        other content, see `store_file`.
        """
        if self._opened is None:
            return
        if self._lost is not None:
            raise StoreOverwrittenError(str(self._lost), self._lost.why)
        what = self._opened.what_became_of_it()
        if not what:
            return
        line = (
            f"the file of the run store, {self._opened.path}, was {what} while vitprof had it open"
        )
        why = f"its file was {what}"
        if what != store_file.OVERWRITTEN:
            raise StoreGoneError(f"{line}; start vitprof again", why)
        todo = "end all programs that use it, and start vitprof again"
        self._lost = StoreOverwrittenError(f"{line}; {todo}", why)
        self._let_go(self._opened.path)
        raise StoreOverwrittenError(str(self._lost), why)

    def _let_go(self, path: Path) -> None:
        """Closes connections to a file that was overwritten, and nothing is written to it.

        The -wal file has the last changes of what was there before. SQLite would write them into the new
        content as the last connection is closed, and at the next start read both together.
        """
        assert self._engine is not None
        failures = (sa.exc.DBAPIError, sa.exc.TimeoutError, OSError)
        with contextlib.suppress(*failures), self._engine.connect() as db:
            # A program that is writing has not seen it yet: it will do this.
            db.exec_driver_sql("BEGIN IMMEDIATE")
            os.truncate(f"{path}-wal", 0)
        self._engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yields a connection whose changes are committed at the end of the block, all or none.

        Raises `StoreError`; `StoreAwayError` where the database cannot be reached or does not answer, so
        that the same may work later; `StoreGoneError` where its file is another one now, or has other
        content.
        """
        self._check_file()
        with self._begun() as connection:
            yield connection
        # what was committed may be in a file that is gone
        self._check_file()

    @contextlib.contextmanager
    def _begun(self) -> Iterator[sa.Connection]:
        """Yields the connection of a transaction. Raises as it does, whatever became of the file."""
        if self._engine is None:
            raise StoreAwayError(f"the run store {self.url} is not open", "it is not open")
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            if server.is_unanswered(error.orig):
                raise self._unanswered() from error
            why = masked(str(error.orig)).strip().partition("\n")[0]
            raise StoreAwayError(
                f"the run store {self.url} failed: {masked(str(error.orig))}", why
            ) from error
        except sa.exc.TimeoutError as error:
            # all connections are in use, waiting
            raise self._unanswered() from error
        except sa.exc.DBAPIError as error:
            why = masked(str(error.orig))
            if self._opened is not None and store_file.is_damaged(error.orig):
                todo = "end all programs that use it, and put a backup in its place"
                wal = f"{self._opened.path.name}-wal"
                raise StoreOverwrittenError(
                    f"the run store {self.url} is damaged ({why}): {todo}, without {wal} next to it",
                    f"its file is damaged: {why}",
                ) from error
            raise StoreError(f"the run store {self.url} failed: {why}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"the run store {self.url} is damaged: {error}") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yields the connection of a transaction that holds the write lock from the start.

        So nobody changes what it reads. That holds for SQLite; queries of other databases need
        `with_for_update`. Raises `StoreError`.
        """
        tag = 0
        try:
            with self.transaction() as db:
                if db.dialect.name == "sqlite":
                    db.exec_driver_sql("BEGIN IMMEDIATE")
                    tag = store_file.count_write(db)
                yield db
        except StoreOverwrittenError as error:
            # A later write might succeed, in a file that is damaged elsewhere.
            self._lost = error
            raise
        if self._opened is not None:
            self._opened.tag = tag

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
        if self._engine is not None:
            self._engine.dispose()
