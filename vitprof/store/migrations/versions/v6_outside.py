"""The time that a script spends outside its steps."""

from __future__ import annotations

from vitprof.store.migrations.columns import add_missing, measured

revision = "6"
down_revision = "5"


def upgrade() -> None:
    """Adds this column."""
    add_missing("steps", measured("outside_s"))
