"""More columns of steps; groups of runs, verdicts and predictions."""

from __future__ import annotations

import sqlalchemy as sa

from vitprof.store.migrations.columns import add_missing, create_index, create_table, measured, text

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Adds these columns and tables."""
    add_missing("steps", measured("h2d_start_s", "host_s", "made_start_s", "made_end_s", "hand_over_s", "worker"))
    add_missing("telemetry", measured("job_cpu_wait_pct"))
    add_missing("runs", [sa.Column("verdict", sa.JSON), text("group_key"), text("role")])
    create_index("ix_runs_group_key", "runs", "group_key")
    create_table(
        "predictions",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("profile_run_id", sa.Integer, nullable=False),
        sa.Column("micro_run_id", sa.Integer, nullable=False),
        sa.Column("verified_run_id", sa.Integer),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("created_utc", sa.String, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("samples_per_s", "low", "high")),
        *measured("measured_per_s"),
    )
    create_index("ix_predictions_profile_run_id", "predictions", "profile_run_id")
