"""Brings the tables of an older store to those of `vitprof.store.database`, with Alembic: a file in `versions` for each
change. That of a column of steps or telemetry needs none, see `vitprof.store.chunks`.
"""

from pathlib import Path

import sqlalchemy as sa

from vitprof.errors import StoreError

OLDEST = 7
"""The oldest version that is migrated; those before had no series in chunks, and are left as they are."""


def migrate(db: sa.Connection) -> None:
    """Migrates the store behind `db`, in its transaction: all steps, or none. Raises `StoreError` without Alembic."""
    try:
        from alembic import command  # here: it takes 0.1 s to import, and no migration is due as a rule
        from alembic.config import Config
    except ModuleNotFoundError as error:
        raise StoreError(
            "the run store is of an earlier version, and it takes alembic to bring it to this one: "
            "python -m pip install alembic"
        ) from error
    config = Config(attributes={"connection": db})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, "head")
