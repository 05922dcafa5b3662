"""Where vitprof keeps its files: data sets, the run store, logs. Only their owner may read them."""

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
STORE_FILE = "recordings.sqlite"
"""File name of the run store in the home, unless `VITPROF_DB` names another database."""
OLD_STORE_FILE = "runs.sqlite"
"""That of the versions before 7, which is left alone."""
DASHBOARD_FILE = "dashboard-port"
"""That of the port of a dashboard that runs."""
OURS = re.compile(
    r"(recordings|runs)\.sqlite.*|(data|prepared|locations|locks|logs|dashboard|tournaments|converted|datasets\.json(\.lock)?)|(vitprof|selftest|dashboard)-.*"
)
"""Names that vitprof creates at the top of its home. With anything else in it, its permissions are left as they are."""


def home() -> Path:
    """Returns the directory for everything that vitprof writes, without creating it."""
    named = os.environ.get("VITPROF_HOME")
    return (
        Path(os.path.expanduser(named))
        if named
        else Path(platformdirs.user_data_dir("vitprof", appauthor=False))
    )


def ensure_dir(path: Path) -> Path:
    """Creates `path` with its parents, which must be writable; closes the home to others. Raises `VitprofError`."""
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
    """Removes all other users' permissions from a file or directory, no link, that this user owns and may change."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        mine = found.st_uid == os.geteuid() and (
            stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        )
        if mine and found.st_mode & 0o077:
            os.chmod(path, stat.S_IMODE(found.st_mode) & 0o700)


def _close_home(top: Path) -> None:
    if top.lstat().st_mode & 0o077 and (
        not os.environ.get("VITPROF_HOME") or all(OURS.fullmatch(name) for name in os.listdir(top))
    ):
        keep_private(top)


def private_file(path: Path) -> Path:
    """Creates `path` as an empty file that only its owner may read, and returns it. Raises `VitprofError`."""
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
    """Opens the log `path`, emptied and readable by its owner only. Raises `VitprofError`, also for a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        why = "it is a link; remove it" if path.is_symlink() else error.strerror or error
        raise VitprofError(f"the log {path} cannot be written: {why}") from error
    log = os.fdopen(descriptor, "wb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        log.close()
        raise VitprofError(f"the log {path} cannot be written: it is not a regular file; remove it")
    log.truncate()
    keep_private(path)
    return log


def data_dir() -> Path:
    return home() / "data"


def log_dir() -> Path:
    return home() / "logs"


def lock_dir() -> Path:
    """Returns the folder of the lock files of all jobs of this machine: `VITPROF_LOCKS` if set."""
    named = os.environ.get("VITPROF_LOCKS")
    return Path(os.path.expanduser(named)) if named else SHARED / "vitprof-jobs"


def temporary_prefix(what: str) -> str:
    """Returns the prefix for names of this process's temporary files; a later one knows by it whose they were."""
    return f"vitprof-{what}-{process_space()}-{os.getpid()}-"


def process_space() -> str:
    """Returns what identifies the space in which process ids are unique: Linux's pid namespace, else the host name."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "".join(c for c in platform.node() if c.isalnum()) or "host"
