"""Runs that belong together, such as those that measure a headroom: writes and reads their group keys and roles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

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
