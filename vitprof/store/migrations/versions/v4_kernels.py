"""Kernel times of steps; SM activity and occupancy in telemetry."""

from __future__ import annotations

from vitprof.store.migrations.columns import add_missing, measured

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Adds these columns."""
    add_missing("steps", measured("kernel_s", "launch_idle_s"))
    add_missing("telemetry", measured("gpu_sm_active_pct", "gpu_sm_occupancy_pct"))
