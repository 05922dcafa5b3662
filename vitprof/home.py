"""Where vitprof keeps its files: data sets, the run store, logs. And what they may be read by: by their owner alone.

`VITPROF_HOME` if set, else the user data directory as platformdirs knows it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

import platformdirs

from vitprof.errors import VitprofError

SHARED = Path("/tmp")
"""A folder of the system's that every user of this machine has, whatever their TMPDIR says."""
STORE_FILE = "runs.sqlite"
"""Name of the run store in it, unless `VITPROF_DB` names another database."""
OURS = re.compile(r"runs\.sqlite.*|(data|prepared|locations|logs|dashboard|tournaments)|(vitprof|selftest)-.*")
"""Names at the top of a home. A directory that holds others too is not closed to anybody: it may have other uses."""


def home() -> Path:
    """Returns the directory for everything vitprof writes. Not created here."""
    named = os.environ.get("VITPROF_HOME")
    return Path(os.path.expanduser(named)) if named else Path(platformdirs.user_data_dir("vitprof", appauthor=False))


def ensure_dir(path: Path) -> Path:
    """Creates `path` with its parents and checks that it can be written to. A home that is made is its owner's alone,
    and so becomes one that was made before, see `keep_private`.

    Raises `VitprofError` with one line that names the directory where that fails (read-only file system,
    no permission, a file in the way, disk full).
    """
    try:
        top = home()
        if path == top or path.is_relative_to(top):
            top.parent.mkdir(parents=True, exist_ok=True)
            top.mkdir(mode=0o700, exist_ok=True)
            _close_home(top)
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise VitprofError(
            f"cannot write to {path}: {error.strerror or error}; set VITPROF_HOME to a directory that can be written to"
        ) from error
    return path


def keep_private(path: Path) -> None:
    """Takes everybody's rights but the owner's from a file or directory of this user; no link is followed.

    What belongs to somebody else, or can't be changed, stays as it is.
    """
    with contextlib.suppress(OSError):
        found = path.lstat()
        mine = found.st_uid == os.geteuid() and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
        if mine and found.st_mode & 0o077:
            os.chmod(path, stat.S_IMODE(found.st_mode) & 0o700)


def _close_home(top: Path) -> None:
    if top.lstat().st_mode & 0o077 and (
        not os.environ.get("VITPROF_HOME") or all(OURS.fullmatch(name) for name in os.listdir(top))
    ):
        keep_private(top)


def private_file(path: Path) -> Path:
    """Returns `path`, an empty file of its owner alone if there was none. One that was there is made so, with those
    beside it whose names begin with its own: a database's journals. Raises `VitprofError`.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        with contextlib.suppress(OSError):
            if path.parent == home():
                _close_home(path.parent)
        for suffix in ("", "-wal", "-shm", "-journal"):
            keep_private(path.with_name(path.name + suffix))
    except OSError as error:
        raise VitprofError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def open_log(path: Path) -> BinaryIO:
    """Returns a file to write, empty, that only its owner may read. Raises `VitprofError` for a link, which might lead
    to anybody's file, and for what is no file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        why = "it is a link; remove it" if path.is_symlink() else error.strerror or error
        raise VitprofError(f"the log {path} cannot be written: {why}") from error
    log = os.fdopen(descriptor, "wb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        log.close()
        raise VitprofError(f"the log {path} cannot be written: it is no file; remove it")
    log.truncate()
    keep_private(path)
    return log


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


def temporary_prefix(what: str) -> str:
    """Returns how names of temporary files and directories of this process begin: if it is killed, a later one knows
    whose they were (`vitprof.jobs.orphans`).
    """
    return f"vitprof-{what}-{process_space()}-{os.getpid()}-"


def process_space() -> str:
    """Returns what tells apart the places where a process id means a process: Linux's pid namespaces, else hosts."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "".join(c for c in platform.node() if c.isalnum()) or "host"
