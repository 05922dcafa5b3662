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

from vitprof.errors import StoreError
from vitprof.home import STORE_FILE, ensure_dir, home
from vitprof.store.schema import STORE_VERSION, bring_up_to_date, metadata, versions

WAL_ATTEMPTS = 10


def database_url() -> str | sa.URL:
    """`VITPROF_DB`, or SQLite under `VITPROF_HOME` (which is made if need be)."""
    named = os.environ.get("VITPROF_DB")
    # No text for the path: a "?" in it would begin the query of an URL.
    return named or sa.URL.create("sqlite", database=str(ensure_dir(home()) / STORE_FILE))


def _parse(url: str | sa.URL) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts can quote a part of the password
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
        except sqlite3.OperationalError:  # another program makes the switch just now, and SQLite does not wait for it
            if not left:
                raise
            cursor.execute("BEGIN IMMEDIATE")  # but it does wait for the turn to write
            cursor.execute("COMMIT")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


class Database:
    """An open database with the store's tables. Raises `StoreError`."""

    def __init__(self, url: str | None = None) -> None:
        parsed = _parse(url or database_url())
        self.url = parsed.render_as_string(hide_password=True)
        try:
            self._engine = sa.create_engine(parsed)
        except (sa.exc.ArgumentError, ImportError) as error:
            raise StoreError(f"VITPROF_DB: {self.url!r} cannot be used: {error}") from error
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _on_connect)
        try:
            self._create_tables()
        except StoreError:
            self.close()
            raise

    def _create_tables(self) -> None:
        with self.writing() as db:  # two programs may open a new store at the same moment
            found = None
            if sa.inspect(db).has_table(versions.name):
                found = db.execute(sa.select(versions.c.version)).scalar()
            if found is None:
                metadata.create_all(db)
                db.execute(sa.insert(versions).values(version=STORE_VERSION))
            elif 1 <= found < STORE_VERSION:
                bring_up_to_date(db)
                db.execute(sa.update(versions).values(version=STORE_VERSION))
            elif found != STORE_VERSION:
                raise StoreError(
                    f"{self.url} was written by another vitprof (store version {found}, not {STORE_VERSION}); "
                    "move it away, or set VITPROF_DB to another database"
                )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A connection whose work is kept at the end of the block, all or none. Raises `StoreError`."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(f"the run store {self.url} failed: {error.orig}") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that has its turn to write from the start: in SQLite nobody changes what it reads, elsewhere
        that takes `with_for_update`. Raises `StoreError`."""
        with self.transaction() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("BEGIN IMMEDIATE")
            yield db

    def close(self) -> None:
        self._engine.dispose()
