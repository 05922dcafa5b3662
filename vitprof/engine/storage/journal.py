"""The progress of making a storage of many small files, kept on disk so that the next try continues from there."""

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
    """What has been written so far. Trusted only until the machine restarts: written data may be lost in a crash."""

    made_of: dict[str, Any]
    """Identity of the storage (`manifest.identity`); a journal with a different one is ignored."""
    split: str = "train"
    """The split being written; those before it are complete."""
    done: int = 0
    """Samples of that split that have been written."""
    spent_s: float = 0.0
    """Seconds spent so far, in all tries."""
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict)
    """Split -> number in the data set -> reason, for each sample that is left out."""

    @classmethod
    def read(cls, directory: Path, made_of: dict[str, Any]) -> Journal | None:
        """Returns the journal of an earlier try at the same storage; None if there is none that can be used."""
        try:
            entry = json.loads((directory / JOURNAL).read_text(encoding="utf-8"))
            if entry["made_of"] != made_of or entry["boot"] != _boot():
                return None
            unreadable = {s: {int(i): str(why) for i, why in found.items()} for s, found in entry["unreadable"].items()}
            return cls(made_of, str(entry["split"]), int(entry["done"]), float(entry["spent_s"]), unreadable)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # unusable: start over

    def write(self, directory: Path) -> None:
        """Replaces the journal on disk atomically. Raises `OSError`."""
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
        """Removes the journal; a finished storage has none."""
        for name in (JOURNAL, f"{JOURNAL}.tmp"):
            (directory / name).unlink(missing_ok=True)


def _boot() -> str:
    """Returns an ID of the machine's current boot: data in the page cache survive a killed process, but not a crash."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return f"{psutil.boot_time():.0f}"
