"""The error for a storage's file that cannot be used."""

from __future__ import annotations

from pathlib import Path

from vitprof.errors import DataError


def unusable(path: Path, why: str) -> DataError:
    """Returns the error to raise for the file at `path`, directly in a storage: one line that says what to do."""
    reason = " ".join(why.split())
    return DataError(f"{path} cannot be read ({reason}); delete {path.parent} and it is made again")
