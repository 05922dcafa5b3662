"""Brings a store that an older version of vitprof made up to date: with Alembic, and one file for each version.

`vitprof_store.version` is the version of a store: the number of the last file in `versions` that was applied to it.
Alembic is imported only where there is something to do.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import sqlalchemy as sa

from vitprof.errors import StoreError


def bring_up_to_date(db: sa.Connection, found: int) -> None:
    """Gives a store of version `found` (0: no tables yet) the tables of this version, in the transaction of `db`."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts, context = ScriptDirectory(str(Path(__file__).parent)), MigrationContext.configure(db)
    with Operations.context(context):
        for revision in reversed([*scripts.iterate_revisions("head", str(found) if found else "base")]):
            revision.module.upgrade()
    context.stamp(scripts, "head")


def keep_copy(path: Path, version: int) -> Path:
    """Copies an SQLite store to a new file beside it, such as "runs.sqlite.version-3", and returns that file.

    Raises `StoreError`.
    """
    name, n = f"{path.name}.version-{version}", 1
    while (kept := path.with_name(name if n == 1 else f"{name}-{n}")).exists():
        n += 1
    part = kept.with_name(f"{kept.name}.{os.getpid()}.part")
    try:
        part.touch(mode=0o600)
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(part)) as new,
        ):
            old.backup(new)
        part.replace(kept)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        size_mb = path.stat().st_size / 1e6
        raise StoreError(
            f"{path} has to be brought up to date, and the copy of it to keep beside it ({size_mb:.1f} MB) failed: "
            f"{error}; make room there, or move it to a disk with more room and set VITPROF_DB to it"
        ) from error
    return kept
