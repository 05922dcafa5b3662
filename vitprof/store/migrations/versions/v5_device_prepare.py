"""Times in which the device prepares a batch before its step."""

from __future__ import annotations

from vitprof.store.migrations.columns import add_missing, measured

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Adds these columns."""
    add_missing("steps", measured("decode_wait_s", "device_prepare_s"))
