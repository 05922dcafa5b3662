"""A run as it is stored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.errors import ConfigError, StoreError, one_line
from vitprof.names import UNNAMED, tamed_name
from vitprof.recording.columns import LIVE_STATUSES, Phase, summary_from_dict
from vitprof.recording.recording import Recording
from vitprof.recording.verdict import Verdict
from vitprof.store.groups import RunGroup
from vitprof.store.schema import runs


class UnreadableRun(StoreError):
    """Raised for a run that another version of vitprof wrote. It is still listed, and can be deleted."""


@dataclass(frozen=True, kw_only=True)
class StoredRun(Recording):
    """A stored run: its recording without tags, steps and telemetry, and what belongs to the store."""

    error: str = ""
    stage: str = ""
    """What a running job is doing: starting, preparing, training, evaluating, finishing."""
    progress: float | None = None
    """Progress of the stage, 0 to 1; None where it is not known."""
    message: str = ""
    """A detail of the stage, such as what is being prepared."""
    owner_host: str
    owner_pid: int
    owner_started: float

    @property
    def id(self) -> int:
        """Returns its number in the store."""
        return self.run_id

    @property
    def live(self) -> bool:
        """Returns whether it is queued or running."""
        return self.status in LIVE_STATUSES

    @property
    def group(self) -> RunGroup | None:
        """Returns its group; None for a run in no group, and for a group that only another version knows."""
        return RunGroup.parse(self.group_key)


STORED = tuple(
    runs.c.id.label("run_id") if f.name == "run_id" else runs.c[f.name]
    for f in dataclasses.fields(StoredRun)
    if f.name == "run_id" or f.name in runs.c
)
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
                    "verdict": _verdict(values["verdict"]),
                }
            )
        )
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnreadableRun(
            f"run {values['run_id']} was written by another version of vitprof and cannot be read ({one_line(error)}); "
            "open it with that version, or delete it"
        ) from error


def _verdict(values: dict[str, Any] | None) -> Verdict | None:
    """Returns a stored verdict; None where this version cannot read it: it can be judged again."""
    try:
        return Verdict.from_dict(values) if values else None
    except ValueError:
        return None
