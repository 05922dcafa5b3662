"""The tables that `Database` made up to version 0.1.0 of vitprof: the baseline."""

revision, down_revision = "7", None


def upgrade() -> None:
    """Does nothing: such a store is there already."""
