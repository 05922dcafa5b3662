"""A run that is in no store yet, and the columns of runs as they are stored."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from vitprof.analysis.verdict import rendering
from vitprof.config import RunConfig, resolve
from vitprof.errors import StoreError
from vitprof.recording.columns import (
    ENDED_STATUSES,
    LIVE_STATUSES,
    STARTED_BY,
    Phase,
    RunSummary,
    summary_to_dict,
)
from vitprof.store import database, stored_run
from vitprof.store.database import runs
from vitprof.store.owners import owner_columns
from vitprof.store.stored_run import StoredRun


@dataclasses.dataclass(frozen=True)
class NewRun:
    """A run that no store has yet."""

    columns: Mapping[str, Any]
    """Its columns as they are stored."""

    @classmethod
    def of(cls, config: RunConfig, facts: Mapping[str, Any] | None = None) -> NewRun:
        """Returns a run with status "queued", owned by this process."""
        columns = new_columns(config)
        return cls({**columns, "facts": {**columns["facts"], **(facts or {})}})

    @classmethod
    def read(cls, values: Any) -> NewRun:
        """Returns the run with these columns, from a file.

        Raises `ValueError` where no run has such columns.
        """
        try:
            columns = dict(values)
            fit = [fits(runs.c[name], value) for name, value in columns.items()]
            if "id" in columns or not all(fit):
                raise ValueError
            new = cls(columns)
            new.run  # noqa: B018
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StoreError):
            raise ValueError("it has values that no run has") from None
        return new

    @property
    def run(self) -> StoredRun:
        """Returns the run as it would be read, with the id 0. Raises `StoreError`, `KeyError`."""
        blank = {column.name: _default(column) for column in runs.c}
        values = {**blank, **self.columns, "run_id": 0}
        return stored_run.read_run(
            {column.name: values[column.name] for column in stored_run.STORED}
        )


def _default(column: sa.Column[Any]) -> Any:
    """Returns what a column holds of a run that says nothing of it."""
    default: Any = column.default
    if default is None:
        return None
    return default.arg(None) if default.is_callable else default.arg


def new_columns(config: RunConfig, started_by: str = "") -> dict[str, Any]:
    """Returns the columns of a new run, as they are stored."""
    values = plain_columns(
        {"config": config, "status": "queued", "created_utc": database.now_utc()}
    )
    values["name"] = resolve.run_name(config)
    values["facts"] = {STARTED_BY: started_by} if started_by else {}
    return values | owner_columns(started_by)


def fits(column: sa.Column[Any], value: Any) -> bool:
    """Returns whether a column may have a value. Raises `TypeError` or `ValueError` for some others."""
    if column.name == "status":
        return value in (*LIVE_STATUSES, *ENDED_STATUSES)
    if value is None and column.nullable is True:
        return True
    kind = column.type.python_type
    if isinstance(column.type, sa.JSON):
        kind = list if column.name in ("phases", "notices", "spark") else dict
    # JSON writes a float that is whole as a whole number
    if kind is float:
        value = float(value)
    return isinstance(value, kind)


def of_verdict(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that repeat parts of a stored verdict: what lists show, search and sort."""
    verdict = stored_run.read_verdict(stored)
    if verdict is None:
        return {"verdict_kind": stored.get("kind", ""), "idle_frac": None}
    idle_frac = verdict.stated_idle_frac
    return {
        "verdict_kind": rendering.in_a_word(verdict),
        "idle_frac": idle_frac if math.isfinite(idle_frac) else None,
    }


def plain_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns of a run as plain values, with those that repeat parts of them.

    Plain values stay as they are.
    """
    values = dict(columns)
    summary = values.get("summary")
    if isinstance(summary, RunSummary):
        summary = values["summary"] = summary_to_dict(summary)
    if summary is not None:
        values["samples_per_s"] = summary.get("samples_per_s")
        values["device_idle_frac"] = summary.get("device_idle_frac")
    if "config" in values:
        config = values["config"]
        if isinstance(config, RunConfig):
            config = values["config"] = config.to_dict()
        for name in database.LISTED:
            kind = int if name == "batch_size" else str
            if isinstance(config.get(name), kind):
                values[name] = config[name]
    if "verdict" in values:
        values |= of_verdict(values["verdict"] or {})
    if "phases" in values:
        values["phases"] = [
            dataclasses.astuple(phase) if isinstance(phase, Phase) else phase
            for phase in values["phases"]
        ]
    return values
