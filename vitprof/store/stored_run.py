"""A run as it is stored."""

from __future__ import annotations

import dataclasses
import re
import socket
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import psutil
import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.errors import ConfigError, StoreError, one_line
from vitprof.names import UNNAMED, tamed_name
from vitprof.recording.columns import LIVE_STATUSES, Phase, summary_from_dict
from vitprof.recording.recording import Recording
from vitprof.recording.verdict import Verdict
from vitprof.store.database import runs

GroupKind = Literal["headroom", "prediction", "tournament", "autotune"]
MADE_FOR_A_RUN: tuple[GroupKind, ...] = ("headroom", "prediction")
"""Kinds of groups whose runs mean nothing without the run that the group is named after."""
NAMED: tuple[GroupKind, ...] = ("autotune",)
"""Kinds of groups with a name in the key; the others have the id of a run or a tournament."""
KEY = re.compile(r"([a-z]{1,20}):(.{1,60})")
ID = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class RunGroup:
    """A group of runs, as the column `group_key` names it: its kind, and the run or tournament it belongs to."""

    kind: GroupKind
    of: int | str
    """Id of the run (headroom, prediction) or of the tournament; for a tuning, a unique name."""

    @property
    def key(self) -> str:
        """Returns the value of the column `group_key`, such as "headroom:7"."""
        return f"{self.kind}:{self.of}"

    @property
    def run_id(self) -> int | None:
        """Returns the id of the run that the group was made for; None for a tournament or a tuning."""
        return int(self.of) if self.kind in MADE_FOR_A_RUN else None

    @classmethod
    def parse(cls, key: str) -> RunGroup | None:
        """Returns the group with this `key`; None for a run in no group ("") and for a key of another version."""
        found = KEY.fullmatch(key)
        if found is None or found[1] not in get_args(GroupKind):
            return None
        kind, of = cast(GroupKind, found[1]), found[2]
        if kind in NAMED:
            return cls(kind, of)
        return cls(kind, int(of)) if ID.fullmatch(of) else None


def role_of(key: str, number: int) -> str:
    """Returns the role of a run in its tournament or tuning, from the trial's key and the round's number."""
    return f"{key}#{number}"


def read_role(role: str) -> tuple[str, int]:
    """Returns the trial's key and the round's number of a role, the inverse of `role_of`; 0 where it has no number."""
    key, _, number = role.rpartition("#")
    return key, int(number) if number.isdecimal() else 0


def this_program() -> tuple[str, int, float]:
    """Returns host, process id and start (seconds since the epoch) of this process, which together identify it."""
    me = psutil.Process()
    return socket.gethostname(), me.pid, me.create_time()


def is_alive(host: str, pid: int, started: float) -> bool:
    """Returns whether that program still runs; True for one of another machine, where that cannot be known."""
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended too; in a container without an init it stays forever
            return False
        return bool(abs(process.create_time() - started) < 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists, but access to it is denied
        return True


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
