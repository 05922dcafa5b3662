"""Where vitprof keeps its files: data sets, the run store, logs. Only their owner may read them.

The home is `VITPROF_HOME` if set, otherwise the user data directory that platformdirs names.
"""

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
    r"(recordings|runs)\.sqlite.*|(data|prepared|locations|locks|logs|dashboard|tournaments|cluster|converted|datasets\.json(\.lock)?)|(vitprof|selftest|dashboard)-.*"
)
"""Names that vitprof creates at the top of its home. With anything else in it, its permissions are left as they are."""


def home() -> Path:
    """Returns the directory for everything that vitprof writes, without creating it."""
    named = os.environ.get("VITPROF_HOME")
    if named:
        return Path(os.path.expanduser(named))
    return Path(platformdirs.user_data_dir("vitprof", appauthor=False))


def ensure_dir(path: Path) -> Path:
    """Creates `path` with its parents and checks that it can be written to.

    The home is created with access for its owner only; an existing one is closed to other users, see
    `OURS`. Raises `VitprofError` that names the directory if this fails (read-only file system, no
    permission, a file in the way, disk full).
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
    """Removes all other users' permissions from a file or directory, no link, that this user owns and may
    change.
    """
    with contextlib.suppress(OSError):
        about = path.lstat()
        is_own = about.st_uid == os.geteuid()
        is_file_or_dir = stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)
        if is_own and is_file_or_dir and about.st_mode & 0o077:
            os.chmod(path, stat.S_IMODE(about.st_mode) & 0o700)


def _close_home(top: Path) -> None:
    """Closes the home to other users, unless it is a folder that is used for other things too."""
    if not top.lstat().st_mode & 0o077:
        return
    is_chosen = bool(os.environ.get("VITPROF_HOME"))
    if not is_chosen or all(OURS.fullmatch(name) for name in os.listdir(top)):
        keep_private(top)


def private_file(path: Path) -> Path:
    """Creates `path` as an empty file that only its owner may read, and returns it.

    If it exists already, removes other users' permissions from it and from a database's journals of that
    name. Raises `VitprofError`.
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
    """Opens the log `path` for writing, emptied and readable by its owner only.

    Raises `VitprofError`, also for a link, which might lead to another user's file.
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
    if named:
        return Path(os.path.expanduser(named))
    return SHARED / "vitprof-jobs"


def temporary_prefix(what: str) -> str:
    """Returns the prefix for names of this process's temporary files; a later one knows by it whose they were."""
    return f"vitprof-{what}-{process_space()}-{os.getpid()}-"


def process_space() -> str:
    """Returns what identifies the space in which process ids are unique: Linux's pid namespace, otherwise
    the host name.
    """
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "".join(c for c in platform.node() if c.isalnum()) or "host"
