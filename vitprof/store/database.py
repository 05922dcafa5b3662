"""The database behind the store: opened, brought up to date, and used in transactions.

`VITPROF_DB` names another database by SQLAlchemy URL; the default is `runs.sqlite` under `VITPROF_HOME`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from vitprof.errors import StoreAwayError, StoreError
from vitprof.home import STORE_FILE, ensure_dir, home, private_file
from vitprof.store.migrations import bring_up_to_date, keep_copy
from vitprof.store.reading import cannot_be_written, reading_url, sqlite_file
from vitprof.store.schema import STORE_VERSION, metadata, versions

WAL_ATTEMPTS = 10


def database_url() -> str | sa.URL:
    """Returns `VITPROF_DB`, or the URL of an SQLite file under `VITPROF_HOME`, which is created if need be."""
    if named := os.environ.get("VITPROF_DB"):
        return named
    path = home() / STORE_FILE
    if not os.path.isfile(path):  # a file that is there can be read even where the directory cannot be written
        ensure_dir(home())
    # No text for the path: a "?" in it would begin the query of an URL.
    return sa.URL.create("sqlite", database=str(private_file(path)))


def _parse(url: str | sa.URL) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their messages can quote part of the password
        _, at, place = str(url).rpartition("@")
        shown = f"***@{place}" if at else place
        raise StoreError(
            f"VITPROF_DB: {shown!r} is not an SQLAlchemy URL; give one such as sqlite:////home/me/runs.sqlite"
        ) from None


def _on_connect(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for left in reversed(range(WAL_ATTEMPTS)):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:  # another program is switching to WAL; SQLite does not wait for that
            if not left:
                raise
            cursor.execute("BEGIN IMMEDIATE")  # but it does wait for a write lock
            cursor.execute("COMMIT")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _version(db: sa.Connection) -> int | None:
    """Returns the version of the store in a database; None where there is no store in it."""
    if not sa.inspect(db).has_table(versions.name):
        return None
    return db.execute(sa.select(versions.c.version)).scalar()


class Database:
    """An open database with the store's tables. Raises `StoreError`.

    A database that can only be read here can be opened and read. So can one that another program keeps locked, as far
    as the database system allows that.
    """

    def __init__(self, url: str | None = None) -> None:
        parsed = _parse(url or database_url())
        self.url = parsed.render_as_string(hide_password=True)
        self.file = sqlite_file(parsed)
        """The file of an SQLite database; None for any other."""
        where = parsed.set(drivername=parsed.get_backend_name(), username=None, password=None, query={})
        self.identity = f"sqlite:{self.file.resolve()}" if self.file else where.render_as_string()
        """A name that tells this database from others, on this machine."""
        self.read_only = self.file is not None and cannot_be_written(self.file)
        """Whether this program may only read the file or its directory."""
        self.migrated = ""
        """A line that says how the store was brought up to date; "" where that was not needed."""
        if self.read_only and self.file is not None:
            parsed = reading_url(parsed, self.file)
        try:
            # A server may have been restarted since a connection was last used: test it before each use.
            self._engine = sa.create_engine(parsed, pool_pre_ping=self.file is None)
        except (sa.exc.ArgumentError, ImportError) as error:
            raise StoreError(f"VITPROF_DB: {self.url!r} cannot be used: {error}") from error
        if self._engine.dialect.name == "sqlite" and not self.read_only:
            sa.event.listen(self._engine, "connect", _on_connect)
        try:
            self._open_tables()
        except StoreError:
            self.close()
            raise

    def _open_tables(self) -> None:
        """Creates the tables, or brings them up to date; does not write to a store that is up to date."""
        with self.transaction() as db:
            found = _version(db)
        if found == STORE_VERSION:
            return
        if self.read_only:
            raise StoreError(self._why_not_here(found))
        with self.writing() as db:  # two programs may open a new store at the same moment
            found = _version(db)
            if found is None:
                metadata.create_all(db)
                db.execute(sa.insert(versions).values(version=STORE_VERSION))
            elif 1 <= found < STORE_VERSION:
                kept = "" if self.file is None else f"; the old one is kept as {keep_copy(self.file, found)}"
                bring_up_to_date(db, found)
                self.migrated = f"{self.url} was brought up to date (store version {found} to {STORE_VERSION}){kept}"
                db.execute(sa.update(versions).values(version=STORE_VERSION))
            elif found != STORE_VERSION:
                raise StoreError(self._of_another_version(found))

    def _of_another_version(self, found: int) -> str:
        return (
            f"{self.url} was written by another version of vitprof (store version {found}, not {STORE_VERSION}); "
            "move it away, or set VITPROF_DB to another database"
        )

    def _why_not_here(self, found: int | None) -> str:
        if found is None or not 1 <= found < STORE_VERSION:
            return (
                f"{self.url} can only be read here, and is not a run store"
                if not found
                else self._of_another_version(found)
            )
        return (
            f"{self.url} can only be read here, and has to be brought up to date first (store version {found}, not "
            f"{STORE_VERSION}): set VITPROF_DB to a copy of it that can be written"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yields a connection whose changes are committed at the end of the block, all or none.

        Raises `StoreError`; `StoreAwayError` where the same may work later.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            why = str(error.orig).strip().partition("\n")[0]
            raise StoreAwayError(f"the run store {self.url} failed: {error.orig}", why) from error
        except sa.exc.TimeoutError as error:  # all connections are in use, waiting
            raise StoreAwayError(
                f"the run store {self.url} failed: it does not answer", "it does not answer"
            ) from error
        except sa.exc.DBAPIError as error:
            raise StoreError(f"the run store {self.url} failed: {error.orig}") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yields the connection of a transaction that holds the write lock from the start, so that nobody changes what
        it reads. That holds for SQLite; other databases need `with_for_update`. Raises `StoreError`.
        """
        with self.transaction() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("BEGIN IMMEDIATE")
            yield db

    def close(self) -> None:
        """Closes all connections to the database."""
        self._engine.dispose()
