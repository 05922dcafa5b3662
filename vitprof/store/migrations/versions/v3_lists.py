"""Separate columns for what lists show and search; tags, notes, tournaments."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from vitprof.store.migrations.columns import add_missing, create_index, create_table, measured, text

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Adds these columns and tables, and fills the columns of existing runs."""
    listed = [
        text("strategy"),
        text("dataset"),
        sa.Column("batch_size", sa.Integer, nullable=False, server_default="0"),
    ]
    listed += [text("device"), *measured("samples_per_s", "idle_frac"), text("verdict_kind"), text("note")]
    add_missing("runs", [*listed, sa.Column("spark", sa.JSON)])
    create_index("ix_runs_group_key_id", "runs", "group_key", "id")
    create_table(
        "run_tags",
        sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tag", sa.String, primary_key=True),
    )
    create_index("ix_run_tags_tag", "run_tags", "tag")
    create_table(
        "tournaments",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("name", "created_utc", "status")),
        *(sa.Column(name, sa.JSON, nullable=False) for name in ("spec", "state")),
        sqlite_autoincrement=True,
    )
    runs = sa.table(
        "runs",
        sa.column("id", sa.Integer),
        *(sa.column(name, sa.JSON) for name in ("config", "summary", "verdict")),
        *(sa.column(column.name, column.type) for column in listed),
    )
    db = op.get_bind()
    for row in db.execute(sa.select(runs.c.id, runs.c.config, runs.c.summary, runs.c.verdict)).fetchall():
        values = _of_config(row.config) | {
            "samples_per_s": (row.summary or {}).get("samples_per_s"),
            "idle_frac": (row.summary or {}).get("device_idle_frac"),
            "verdict_kind": (row.verdict or {}).get("kind", ""),
        }
        db.execute(sa.update(runs).where(runs.c.id == row.id).values(**values))


def _of_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a config that lists show, as far as it has them."""
    kinds = {"strategy": str, "dataset": str, "batch_size": int, "device": str}
    return {name: config[name] for name, kind in kinds.items() if isinstance(config.get(name), kind)}
