"""Runs that belong together, such as the anchors of a headroom: the key that they share, written and read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

GroupKind = Literal["headroom", "prediction", "tournament", "autotune", "selftest"]
KEY = re.compile(r"(?P<kind>[a-z]{1,20}):(?P<of>.{1,60})")


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

    @classmethod
    def parse(cls, key: str) -> RunGroup | None:
        """The inverse of `key`; None for a run of its own ("") and for what another version wrote."""
        found = KEY.fullmatch(key)
        if found is None or found["kind"] not in get_args(GroupKind):
            return None
        of = found["of"]
        return cls(cast(GroupKind, found["kind"]), int(of) if of.isdecimal() else of)
