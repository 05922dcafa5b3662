"""The tables of the run store."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

STORE_VERSION = 7
"""Version of these tables, stamped as Alembic stamps a database's revision: this is the baseline that a later
migration can be written against. A column of steps or telemetry needs none, see `chunks`."""
MAX_ID = 2**31 - 1
"""The largest id that an INTEGER of every database can hold; drivers refuse larger numbers with errors of their own."""


metadata = sa.MetaData()
versions = sa.Table("alembic_version", metadata, sa.Column("version_num", sa.String(32), primary_key=True))
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False, index=True),
    # What lists show and search comes before the long values: a scan need not read through those.
    sa.Column("strategy", sa.String, nullable=False, default="", server_default=""),
    sa.Column("dataset", sa.String, nullable=False, default="", server_default=""),
    sa.Column("batch_size", sa.Integer, nullable=False, default=0, server_default="0"),
    sa.Column("device", sa.String, nullable=False, default="", server_default=""),
    sa.Column("samples_per_s", sa.Double),
    sa.Column("idle_frac", sa.Double),
    sa.Column("verdict_kind", sa.String, nullable=False, default="", server_default=""),
    sa.Column("note", sa.String, nullable=False, default="", server_default=""),
    sa.Column("spark", sa.JSON(none_as_null=True)),
    sa.Column("stage", sa.String, nullable=False, default=""),
    sa.Column("progress", sa.Double),
    sa.Column("message", sa.String, nullable=False, default=""),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("t_origin_s", sa.Double),
    sa.Column("training_since_s", sa.Double),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("environment", sa.JSON, nullable=False, default=dict),
    sa.Column("facts", sa.JSON, nullable=False, default=dict),
    sa.Column("phases", sa.JSON, nullable=False, default=list),
    sa.Column("notices", sa.JSON, nullable=False, default=list),
    sa.Column("summary", sa.JSON),
    sa.Column("verdict", sa.JSON),
    sa.Column("group_key", sa.String, nullable=False, default="", server_default="", index=True),
    sa.Column("role", sa.String, nullable=False, default="", server_default=""),
    sa.Column("error", sa.String, nullable=False, default=""),
    sa.Column("owner_host", sa.String, nullable=False),
    sa.Column("owner_pid", sa.Integer, nullable=False),
    sa.Column("owner_started", sa.Double, nullable=False),
    sqlite_autoincrement=True,  # ids are never reused: a shared link must not lead to another run
)
series = sa.Table(
    "series",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # the number of its first row; with that of its last one, finds the chunks that have new rows for a page
    sa.Column("chunk", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sa.Column("merged", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.LargeBinary, nullable=False),
)
run_tags = sa.Table(
    "run_tags",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.String, primary_key=True, index=True),
)
tournaments = sa.Table(
    "tournaments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("state", sa.JSON, nullable=False, default=dict),
    sqlite_autoincrement=True,  # ids are never reused: a new tournament must not inherit a deleted one's trials
)
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("profile_run_id", sa.Integer, nullable=False, index=True),
    sa.Column("micro_run_id", sa.Integer, nullable=False),
    sa.Column("verified_run_id", sa.Integer),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("samples_per_s", sa.Double, nullable=False),
    sa.Column("low", sa.Double, nullable=False),
    sa.Column("high", sa.Double, nullable=False),
    sa.Column("measured_per_s", sa.Double),
)
LISTED = ("strategy", "dataset", "batch_size", "device")
"""Columns of `runs` that repeat fields of the run's config."""
FIRST_PAGE = sa.Index("ix_runs_group_key_id", runs.c.group_key, runs.c.id)
"""Finds the newest runs of a group, or of none, without sorting."""


def listed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of `LISTED` for a config given as plain values; those that a config of another version lacks
    are left out.
    """
    kinds = {"batch_size": int}
    return {name: config[name] for name in LISTED if isinstance(config.get(name), kinds.get(name, str))}


def figures(summary: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the columns of `runs` that repeat figures of the summary; None for those it does not have."""
    return {
        "samples_per_s": (summary or {}).get("samples_per_s"),
        "idle_frac": (summary or {}).get("device_idle_frac"),
    }
