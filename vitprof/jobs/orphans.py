"""Clears what killed vitprof programs left behind, when the next one starts: temporary directories, and processes that
were suspended and so never noticed that their owner is gone.

Only what belongs to this user, and is marked by a vitprof process of this pid namespace (`home.process_space`) that is
gone, is cleared.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from vitprof.home import process_space

OWNER = "VITPROF_OWNER"
"""The environment variable of a job, and of all that it starts, that names the process that started it:
"process_space-pid"."""
OF_MULTIPROCESSING = "pymp-"
"""Prefix of the temporary directories of Python's multiprocessing; their names do not say whose they are."""
MARK = ".vitprof-"
"""Prefix of the file in such a directory that marks it as ours."""


def owner_mark() -> str:
    """Returns the value of `OWNER` that names this process."""
    return f"{process_space()}-{os.getpid()}"


def mark_multiprocessing() -> None:
    """Makes multiprocessing's temporary directory now, for this process and its workers, and marks it."""
    directory = Path(multiprocessing.util.get_temp_dir())
    (directory / f"{MARK}{owner_mark()}").touch(mode=0o600)


def clear_orphans() -> None:
    """Removes leftover temporary files and kills leftover processes."""
    clear_temporary()
    for process in _stopped_and_alone():
        with contextlib.suppress(psutil.Error):  # gone meanwhile; psutil notices if its id is another process's by now
            process.kill()


def clear_temporary() -> None:
    """Removes our temporary files and directories whose process is gone. What can't be removed stays, without a
    message: nothing depends on it.
    """
    for path in _left_in(Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _left_in(directory: Path) -> Iterator[Path]:
    """Yields what processes of ours that are gone left in `directory`."""
    ours = re.compile(rf"vitprof-[a-z-]+-{re.escape(process_space())}-(\d+)-\w+")
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            found = ours.fullmatch(entry.name)
            if not found and not entry.name.startswith(OF_MULTIPROCESSING):
                continue
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid != os.geteuid() or not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)):
                    continue
                pid = int(found[1]) if found else _marked(Path(entry.path))
                if pid is not None and not psutil.pid_exists(pid):
                    yield Path(entry.path)


def _marked(directory: Path) -> int | None:
    """Returns the id of the process that marked a directory of multiprocessing; None where none of ours did."""
    for name in os.listdir(directory):
        if name.startswith(MARK):
            return _pid_of(name.removeprefix(MARK))
    return None


def _pid_of(mark: str) -> int | None:
    place, _, pid = mark.rpartition("-")
    return int(pid) if place == process_space() and pid.isdecimal() else None


def _stopped_and_alone() -> Iterator[psutil.Process]:
    """Yields processes of our jobs that are suspended (SIGSTOP, Ctrl-Z) and whose owner is gone. Those that are running
    end by themselves.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_STOPPED or process.uids().real != os.getuid():
                continue
            pid = _pid_of(process.environ().get(OWNER, ""))
            if pid is not None and not psutil.pid_exists(pid):
                yield process
