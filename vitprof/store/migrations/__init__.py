"""Brings the tables of an older store to those of `vitprof.store.database`, with Alembic.

Each change has a file in `versions`. A new column of steps or telemetry needs none, see
`vitprof.store.chunks`.
"""

from pathlib import Path

import sqlalchemy as sa

from vitprof.errors import StoreError

OLDEST = 7
"""The oldest version that is migrated; those before had no series in chunks, and are left as they are."""


def migrate(db: sa.Connection) -> None:
    """Migrates the store behind `db`, in its transaction: all steps, or none.

    Raises `StoreError` without Alembic.
    """
    try:
        # here: it takes 0.1 s to import, and no migration is due as a rule
        from alembic import command
        from alembic.config import Config
    except ModuleNotFoundError as error:
        raise StoreError(
            "the run store is of an earlier version, and it takes alembic to bring it to this one: "
            "python -m pip install alembic"
        ) from error
    config = Config(attributes={"connection": db})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, "head")


def is_older(stored_version: str | None, version: int) -> bool:
    """Returns whether a store of that version can be migrated to this `version`."""
    return (
        stored_version is not None
        and stored_version.isdecimal()
        and OLDEST <= int(stored_version) < version
    )


def may_only_read(db: sa.Connection, table: str) -> bool:
    """Returns whether a server lets this user read the runs, and no more.

    That is so by the rights of the user's role, or because the server only follows another one.
    """
    if db.dialect.name != "postgresql":
        return False
    may = (
        sa.func.has_table_privilege(table, "INSERT"),
        sa.func.current_setting("transaction_read_only") == "off",
    )
    return not all(db.execute(sa.select(*may)).one())


def why_not_opened(url: str, stored_version: str | None, version: int) -> str:
    """Returns the line for a store of a version that is neither this one's nor could be migrated."""
    written = f"{url} was written by another version of vitprof (store version {stored_version}, not {version})"
    todo = "move it away, or set VITPROF_DB to another database"
    if is_older(stored_version, version):
        todo = "open it once where it can be written to"
    return f"{written} and is left unchanged; {todo}"
