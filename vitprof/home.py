"""Where vitprof keeps its files: data sets, the run store, logs.

`VITPROF_HOME` if set, else the user data directory as platformdirs knows it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from vitprof.errors import VitprofError

SHARED = Path("/tmp")
"""A folder of the system's that every user of this machine has, whatever their TMPDIR says."""
STORE_FILE = "runs.sqlite"
"""Name of the run store in it, unless `VITPROF_DB` names another database."""


def home() -> Path:
    """Returns the directory for everything vitprof writes. Not created here."""
    named = os.environ.get("VITPROF_HOME")
    return Path(os.path.expanduser(named)) if named else Path(platformdirs.user_data_dir("vitprof", appauthor=False))


def ensure_dir(path: Path) -> Path:
    """Creates `path` with its parents and checks that it can be written to.

    Raises `VitprofError` with one line that names the directory where that fails (read-only file system,
    no permission, a file in the way, disk full).
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise VitprofError(
            f"cannot write to {path}: {error.strerror or error}; set VITPROF_HOME to a directory that can be written to"
        ) from error
    return path


def data_dir() -> Path:
    """`<home>/data`: one directory for each data set."""
    return home() / "data"


def log_dir() -> Path:
    """`<home>/logs`: standard output and error of each job's process."""
    return home() / "logs"


def lock_dir() -> Path:
    """`VITPROF_LOCKS` if set, else a folder that all users and homes of this machine share: the tickets of its jobs."""
    named = os.environ.get("VITPROF_LOCKS")
    return Path(os.path.expanduser(named)) if named else SHARED / "vitprof-jobs"
