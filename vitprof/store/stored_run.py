"""A run as the store holds it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.errors import ConfigError, StoreError, one_line
from vitprof.names import UNNAMED, tamed_name
from vitprof.records import LIVE_STATUSES, STARTED_BY, Phase, RunSummary, Status, summary_from_dict
from vitprof.store.groups import RunGroup
from vitprof.store.schema import runs


class UnreadableRun(StoreError):
    """A run that another version of vitprof wrote. Its place in lists stays, and it can be deleted."""


@dataclass(frozen=True)
class StoredRun:
    """A run as the store holds it: everything but its steps and telemetry."""

    id: int
    name: str
    status: Status
    stage: str
    """What a running job is doing: starting, preparing, training, evaluating, finishing."""
    progress: float | None
    """How far the stage is, 0..1; None where there is no telling."""
    message: str
    """What goes with the stage, such as what is being prepared."""
    created_utc: str
    """ISO 8601 with a Z."""
    t_origin_s: float | None
    """When the job left the queue, on the monotonic clock of its machine."""
    training_since_s: float | None
    """When its training began, on the same clock."""
    config: RunConfig
    environment: dict[str, Any]
    facts: dict[str, Any]
    phases: tuple[Phase, ...]
    notices: tuple[str, ...]
    summary: RunSummary | None
    error: str
    owner_host: str
    owner_pid: int
    owner_started: float
    verdict: dict[str, Any] | None = None
    """A `vitprof.analysis.verdict.verdict.Verdict` as plain values."""
    group_key: str = ""
    """Runs with the same one belong together; "" for a run of its own."""
    role: str = ""
    """What the run is in its group."""
    note: str = ""
    """What a person wrote about it."""

    @property
    def live(self) -> bool:
        return self.status in LIVE_STATUSES

    @property
    def started_by(self) -> str:
        """Returns who started it, of those who log in to the dashboard; "" where nobody does."""
        return str(self.facts.get(STARTED_BY) or "")

    @property
    def group(self) -> RunGroup | None:
        """Returns what it belongs to; None for a run of its own, and for what another version of vitprof knows."""
        return RunGroup.parse(self.group_key)


STORED = tuple(runs.c[f.name] for f in dataclasses.fields(StoredRun))
"""The columns that make a `StoredRun`."""


def stored_run(row: sa.Row[Any]) -> StoredRun:
    """Returns a row of `STORED`. Raises `UnreadableRun` where another version of vitprof wrote what this one cannot
    read.
    """
    values = dict(row._mapping)
    try:
        return StoredRun(
            **(
                values
                | {
                    "name": tamed_name(values["name"]) or UNNAMED,
                    "config": RunConfig.from_dict(values["config"]),
                    "phases": tuple(Phase(*p) for p in values["phases"]),
                    "notices": tuple(values["notices"]),
                    "summary": summary_from_dict(values["summary"]) if values["summary"] else None,
                }
            )
        )
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnreadableRun(
            f"run {values['id']} was written by another version of vitprof and cannot be read ({one_line(error)}); "
            "open it with that version, or delete it"
        ) from error
