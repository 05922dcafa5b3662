"""Who made a run, and for which project."""

import sqlalchemy as sa
from alembic import op

revision = "8"
down_revision = "7"


def upgrade() -> None:
    for name in ("owner_user", "project"):
        op.add_column("runs", sa.Column(name, sa.String, nullable=False, server_default=""))
    op.create_index("ix_runs_owner_user", "runs", ["owner_user"])
