"""What a recommended setting asks of a script: arguments of its DataLoader, and what no argument makes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitprof.config.own_script import (
    OwnScript,
    besides_arguments,
    changed_arguments,
    settings_of,
)
from vitprof.config.varied import STORAGE
from vitprof.program import program


class NoPatch(Exception):
    """A change that a patch of the script cannot make, or not surely: what to do instead."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        """Sentences without full stops: why there is no patch, and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a setting asks of the script."""

    values: Mapping[str, Any]
    """PyTorch's name of an argument of the train DataLoader -> its value."""
    needed: frozenset[str]
    """The names among them that must be given. The values of the others mean the same as no argument: of what
    PyTorch refuses without workers, and of batches in order."""
    by_hand: tuple[str, ...] = ()
    """What the setting has besides, which no argument makes, in words."""

    def as_keywords(self) -> str:
        """Returns "num_workers=4, pin_memory=True"."""
        return ", ".join(
            f"{name}={value!r}" for name, value in self.values.items() if name in self.needed
        )


def wanted_of(script: OwnScript, key: str) -> Wanted:
    """Returns what the setting `key` of a tournament on a script asks of it.

    batch_size is left to the user: another one changes how the model learns.
    """
    setting = next(each for each in settings_of(script) if each.key == key)
    by_hand = []
    form = setting.changes.get(STORAGE)
    if form:
        converting = f"{program()} convert --to {form} --out DIRECTORY"
        by_hand.append(f"samples stored as {form}: {converting} -- {shlex.join(script.command)}")
    if "batch_size" in setting.changes:
        batch = f"batch_size={setting.changes['batch_size']}"
        by_hand.append(f"{batch}, which also changes how the model learns")
    by_hand += besides_arguments(setting)
    values = {name: value for name, value in setting.arguments.items() if name != "batch_size"}
    needed = changed_arguments(setting, script.loader or {})
    return Wanted(values, frozenset(needed & set(values)), tuple(by_hand))
