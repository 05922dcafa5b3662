"""Files below a folder that were changed since a moment, whichever program changed them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vitprof import home

LEFT_OUT = ("__pycache__", ".git")
"""Folders that are not searched: what is written there does not matter to the user, such as byte code."""
MOST_FILES, MOST_S = 300_000, 20.0
"""The most files that are checked, and the most seconds: a folder of samples can have millions."""
CLOCK_S = 0.05
"""Tolerance for the times of files, whose clock advances only every few milliseconds."""


def written_since(folder: Path, since_s: float) -> tuple[list[str], bool]:
    """Returns the files below `folder` that were made or changed since `since_s` (`time.time()`), relative to it, and
    whether all files were checked.

    It goes by ctime, which programs cannot set, so it also finds files that a C library wrote and files that replaced
    others. vitprof's own files, byte code and `.git` are left out.
    """
    found: list[str] = []
    own, until, n = home.home().resolve(), time.monotonic() + MOST_S, 0
    folders = [folder.resolve()]
    while folders:
        here = folders.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:  # such as a folder that this user may not read
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
