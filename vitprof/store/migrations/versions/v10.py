"""The idle share in lists is the one that the verdict states, and so is the verdict's word.

It was all time that the device idled, which is a column of its own now.
"""

import sqlalchemy as sa
from alembic import op

from vitprof.store.new_run import of_verdict

revision = "10"
down_revision = "9"

ROWS_AT_ONCE = 500
"""Verdicts in memory at the same time, of a few kB each."""


def upgrade() -> None:
    op.add_column("runs", sa.Column("device_idle_frac", sa.Double))
    op.execute("UPDATE runs SET device_idle_frac = idle_frac, idle_frac = NULL")
    runs = sa.table(
        "runs",
        sa.column("id", sa.Integer),
        sa.column("verdict", sa.JSON),
        sa.column("verdict_kind", sa.String),
        sa.column("idle_frac", sa.Double),
    )
    changed = sa.update(runs).where(runs.c.id == sa.bindparam("of_run"))
    db = op.get_bind()
    ids = db.execute(sa.select(runs.c.id)).scalars().all()
    for first in range(0, len(ids), ROWS_AT_ONCE):
        some = runs.c.id.in_(ids[first : first + ROWS_AT_ONCE])
        judged = db.execute(sa.select(runs.c.id, runs.c.verdict).where(some)).all()
        values = [{**of_verdict(run.verdict), "of_run": run.id} for run in judged if run.verdict]
        if values:
            db.execute(changed, values)
