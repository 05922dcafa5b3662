"""How far the making of a storage of many small files has come, kept on disk so that the next try goes on there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

JOURNAL = "journal.json"


@dataclass
class Journal:
    """What has been written so far. Trusted only until the machine restarts: what was written may be lost with it."""

    made_of: dict[str, Any]
    split: str = "train"
    """The split being written; those before it are complete."""
    done: int = 0
    """Samples of that split that have been written."""
    spent_s: float = 0.0
    """Time spent so far, in all tries."""
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict)
    """For each split with samples that are left out: their numbers in the data set, and why."""

    @classmethod
    def read(cls, directory: Path, made_of: dict[str, Any]) -> Journal | None:
        """Returns the journal of an earlier try at the same; None if there is none that can be used."""
        try:
            entry = json.loads((directory / JOURNAL).read_text(encoding="utf-8"))
            if entry["made_of"] != made_of or entry["boot"] != _boot():
                return None
            unreadable = {s: {int(i): str(why) for i, why in found.items()} for s, found in entry["unreadable"].items()}
            return cls(made_of, str(entry["split"]), int(entry["done"]), float(entry["spent_s"]), unreadable)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # as good as none: made from the start

    def write(self, directory: Path) -> None:
        """Puts it on disk in one step. Raises `OSError`."""
        entry = {
            "made_of": self.made_of,
            "boot": _boot(),
            "split": self.split,
            "done": self.done,
            "spent_s": self.spent_s,
            "unreadable": self.unreadable,
        }
        temporary = directory / f"{JOURNAL}.tmp"
        temporary.write_text(json.dumps(entry), encoding="utf-8")
        os.replace(temporary, directory / JOURNAL)

    @staticmethod
    def remove(directory: Path) -> None:
        """A storage that is finished has none."""
        for name in (JOURNAL, f"{JOURNAL}.tmp"):
            (directory / name).unlink(missing_ok=True)


def _boot() -> str:
    """Tells one start of the machine from another. Data in the page cache survive a process, not a crash."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return f"{psutil.boot_time():.0f}"
