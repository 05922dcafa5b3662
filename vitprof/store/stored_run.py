"""A run as it is stored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.errors import ConfigError, StoreError, one_line
from vitprof.names import UNNAMED, tamed_name
from vitprof.recording.columns import LIVE_STATUSES, STARTED_BY, Phase, RunSummary, Status, summary_from_dict
from vitprof.store.groups import RunGroup
from vitprof.store.schema import runs


class UnreadableRun(StoreError):
    """Raised for a run that another version of vitprof wrote. It is still listed, and can be deleted."""


@dataclass(frozen=True)
class StoredRun:
    """A stored run: everything but its steps and telemetry."""

    id: int
    name: str
    status: Status
    stage: str
    """What a running job is doing: starting, preparing, training, evaluating, finishing."""
    progress: float | None
    """Progress of the stage, 0 to 1; None where it is not known."""
    message: str
    """A detail of the stage, such as what is being prepared."""
    created_utc: str
    """ISO 8601 with a Z."""
    t_origin_s: float | None
    """When the job left the queue, in seconds on its machine's monotonic clock."""
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
    """Runs with the same key belong together; "" for a run in no group."""
    role: str = ""
    """The run's role in its group."""
    note: str = ""
    """The user's note."""

    @property
    def live(self) -> bool:
        """Returns whether it is queued or running."""
        return self.status in LIVE_STATUSES

    @property
    def started_by(self) -> str:
        """Returns the dashboard's user who started it; "" where there is no login."""
        return str(self.facts.get(STARTED_BY) or "")

    @property
    def group(self) -> RunGroup | None:
        """Returns its group; None for a run in no group, and for a group that only another version knows."""
        return RunGroup.parse(self.group_key)


STORED = tuple(runs.c[f.name] for f in dataclasses.fields(StoredRun))
"""The columns that make a `StoredRun`."""


def stored_run(row: sa.Row[Any]) -> StoredRun:
    """Returns a row of the columns `STORED` as a run. Raises `UnreadableRun` where this version cannot read it."""
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
