"""Runs, their steps and their telemetry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from vitprof.store.migrations.columns import create_index, measured

revision = "1"
down_revision = None


def upgrade() -> None:
    """Adds the tables of the first version."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("name", "status", "stage")),
        sa.Column("progress", sa.Double),
        *(sa.Column(name, sa.String, nullable=False) for name in ("message", "created_utc")),
        *measured("t_origin_s", "training_since_s"),
        *(sa.Column(name, sa.JSON, nullable=False) for name in ("config", "environment", "facts", "phases", "notices")),
        sa.Column("summary", sa.JSON),
        *(sa.Column(name, sa.String, nullable=False) for name in ("error", "owner_host")),
        sa.Column("owner_pid", sa.Integer, nullable=False),
        sa.Column("owner_started", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    create_index("ix_runs_status", "runs", "status")
    counted = ("epoch", "samples", "warmup")
    names = (
        *("epoch", "t_start_s", "data_wait_s", "h2d_s", "compute_start_s", "compute_s", "gap_s", "exposed_wait_s"),
        *("step_s", "samples", "loss", "warmup", "read_s", "decode_s", "transform_s", "collate_s", "queue_depth"),
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Integer, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("rank", "step")),
        *(sa.Column(name, sa.BigInteger if name in counted else sa.Double) for name in names),
        sa.PrimaryKeyConstraint("run_id", "step", "rank"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "telemetry",
        sa.Column("run_id", sa.Integer, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        *measured("t_s", "gpu_util_pct", "gpu_mem_used_bytes", "gpu_mem_job_bytes", "gpu_power_w", "gpu_sm_clock_mhz"),
        *measured("gpu_temp_c", "pcie_rx_bytes_per_s", "cpu_pct", "job_cpu_pct", "job_rss_bytes"),
        *measured("disk_read_bytes_per_s"),
        sqlite_with_rowid=False,
    )
