"""The tables that `Database` made up to version 0.1.0 of vitprof: the baseline."""

revision = "7"
down_revision = None


def upgrade() -> None:
    """Does nothing: such a store is there already."""
