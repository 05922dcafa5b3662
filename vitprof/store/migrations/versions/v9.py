"""Without predictions. Their runs, loaders alone and checks, are measured: they become runs of their own."""

from alembic import op

revision = "9"
down_revision = "8"


def upgrade() -> None:
    op.execute("UPDATE runs SET group_key = '', role = '' WHERE group_key LIKE 'prediction:%'")
    op.drop_table("predictions")
