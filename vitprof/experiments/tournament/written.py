"""Which files below a folder were changed since a moment, whoever changed them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vitprof import home

LEFT_OUT = ("__pycache__", ".git")
"""Folders that nobody misses a file in: byte code is made anew."""
MOST_FILES, MOST_S = 300_000, 20.0
"""How many files are looked at, and for how long, at most: a folder of samples can have millions."""
CLOCK_S = 0.05
"""A file's times come from a clock that stands still for some milliseconds."""


def written_since(folder: Path, since_s: float) -> tuple[list[str], bool]:
    """Returns the files below `folder` that were made or changed since `since_s` (`time.time()`), relative to it, and
    whether all were looked at.

    By the time of the last change of each file's entry, which nobody can set: what a C library wrote is found too, and
    a file that was put in place of another. vitprof's own files and byte code are left out.
    """
    found: list[str] = []
    own, until, n = home.home().resolve(), time.monotonic() + MOST_S, 0
    folders = [folder.resolve()]
    while folders:
        here = folders.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:  # not ours to look into
            continue
        for entry in entries:
            n += 1
            if n > MOST_FILES or (n % 1000 == 0 and time.monotonic() > until):
                return found, False
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in LEFT_OUT and Path(entry.path) != own:
                        folders.append(Path(entry.path))
                elif entry.stat(follow_symlinks=False).st_ctime >= since_s - CLOCK_S:
                    found.append(os.path.relpath(entry.path, folder.resolve()))
            except OSError:  # gone meanwhile
                continue
    return found, True
