"""What killed programs of ours left behind: temporary directories, and processes that were stopped and so never saw
that their owner is gone. Cleared when the next one starts.

Ours is what belongs to this user, bears the mark of a vitprof process of this very place (`home.process_space`), and
whose process is gone. Anything that is not all three stays.
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
"""The variable that tells a job, and all that it starts, which process started it: "place-pid"."""
OF_MULTIPROCESSING = "pymp-"
"""How Python's multiprocessing calls its temporary directories: nobody's in particular."""
MARK = ".vitprof-"
"""How the name of the file begins that makes one ours."""


def owner_mark() -> str:
    """Returns this process as the value of `OWNER`."""
    return f"{process_space()}-{os.getpid()}"


def mark_multiprocessing() -> None:
    """Has multiprocessing make its temporary directory now, for this process and its workers, and marks it."""
    directory = Path(multiprocessing.util.get_temp_dir())
    (directory / f"{MARK}{owner_mark()}").touch(mode=0o600)


def clear_orphans() -> None:
    """Removes the directories and ends the processes that are left over."""
    clear_temporary()
    for process in _stopped_and_alone():
        with contextlib.suppress(psutil.Error):  # gone meanwhile, or another program by now: psutil looks
            process.kill()


def clear_temporary() -> None:
    """Removes temporary files and directories of ours whose process is gone. What can't be removed stays, without a
    word: nothing depends on it.
    """
    for path in _left_in(Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _left_in(directory: Path) -> Iterator[Path]:
    """Yields what gone processes of ours left in `directory`."""
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
    """Returns the process that marked a directory of multiprocessing's; None where none of ours did."""
    for name in os.listdir(directory):
        if name.startswith(MARK):
            return _pid_of(name.removeprefix(MARK))
    return None


def _pid_of(mark: str) -> int | None:
    place, _, pid = mark.rpartition("-")
    return int(pid) if place == process_space() and pid.isdecimal() else None


def _stopped_and_alone() -> Iterator[psutil.Process]:
    """Yields processes that jobs of ours made, that are stopped (SIGSTOP, Ctrl-Z) and whose owner is gone. Those that
    run end by themselves.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_STOPPED or process.uids().real != os.getuid():
                continue
            pid = _pid_of(process.environ().get(OWNER, ""))
            if pid is not None and not psutil.pid_exists(pid):
                yield process
