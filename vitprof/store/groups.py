"""Runs that belong together, such as the anchors of a headroom: the key and the role of each, written and read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

GroupKind = Literal["headroom", "prediction", "tournament", "autotune"]
MADE_FOR_A_RUN: tuple[GroupKind, ...] = ("headroom", "prediction")
"""Kinds of groups whose runs mean nothing without the run that the group is named after."""
NAMED: tuple[GroupKind, ...] = ("autotune",)
"""Kinds of groups that have a name; the others have the id of a run or a tournament."""
KEY = re.compile(r"([a-z]{1,20}):(.{1,60})")
ID = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class RunGroup:
    """What a run's column `group_key` says: which kind of group it is in, and of what."""

    kind: GroupKind
    of: int | str
    """Id of the run (headroom, prediction) or of the tournament; for a tuning, a name that no other one has."""

    @property
    def key(self) -> str:
        """As the store keeps it: "headroom:7"."""
        return f"{self.kind}:{self.of}"

    @property
    def run_id(self) -> int | None:
        """Returns the run that the group was made for; None for a tournament and a tuning, which were made for none."""
        return int(self.of) if self.kind in MADE_FOR_A_RUN else None

    @classmethod
    def parse(cls, key: str) -> RunGroup | None:
        """Returns the inverse of `key`; None for a run of its own ("") and for what another version wrote."""
        found = KEY.fullmatch(key)
        if found is None or found[1] not in get_args(GroupKind):
            return None
        kind, of = cast(GroupKind, found[1]), found[2]
        if kind in NAMED:
            return cls(kind, of)
        return cls(kind, int(of)) if ID.fullmatch(of) else None


def role_of(key: str, number: int) -> str:
    """Returns the role of a run in the group of its tournament or tuning: trial key and round."""
    return f"{key}#{number}"


def read_role(role: str) -> tuple[str, int]:
    """Returns the inverse of `role_of`: trial key and round; round 0 where it is none."""
    key, _, number = role.rpartition("#")
    return key, int(number) if number.isdecimal() else 0
