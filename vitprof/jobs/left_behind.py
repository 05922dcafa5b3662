"""Processes that a trial's script leaves behind: all of them end with it.

A process can leave the script's process group and session, and drop its environment, and its parent may
be gone. What it cannot choose is its next parent. On Linux that is this program, while it is a
subreaper (prctl(2)): so a child in another session that this program has not started is the script's.
Elsewhere only those are found that still have the script's environment.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from vitprof.jobs.killed_jobs import OWNER, owner_mark

SET_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER."""
END_S = 5.0
"""How long (s) to wait for the end of processes that were killed."""
CHECK_S = 0.001
"""Less than a process that starts itself anew takes for that."""
QUIET_LOOKS = 3
"""Looks in a row that find none, after one that did: a look may miss one that is just being started."""
ANEW = "a process that starts itself anew all the time"
_own: set[int] = set()
"""Processes in sessions of their own that this program has started."""


class LeftBehind:
    """The processes that one script leaves. Is made before the script is started."""

    def __init__(self, name: str, value: str) -> None:
        """`name`, `value`: an environment variable that the script begins with, and no other program."""
        self._name = name
        self._value = value
        self._before = set(_children())
        """Children that cannot be the script's: those that this program had already."""
        _subreaper.begin()
        self._is_open = True

    def end(self) -> list[str]:
        """Kills them, once the script itself has ended. Returns those that still run, in words."""
        until = time.monotonic() + END_S
        n_quiet = 0
        found = self._kill(until)
        while found or 0 < n_quiet < QUIET_LOOKS:
            if time.monotonic() > until:
                left = [process for process in self._adopted() if not _let_go(process)]
                return [_in_words(process) for process in (*left, *self._marked())] or [ANEW]
            time.sleep(CHECK_S)
            found = self._kill(until)
            n_quiet = 0 if found else n_quiet + 1
        return []

    def _kill(self, until: float) -> bool:
        """Kills those that run; returns whether there were any, or any had ended since the last look."""
        outcomes = [_end(process) for process in self._adopted()]
        found = bool(outcomes)
        # again at once: some start themselves anew within milliseconds
        while any(outcomes) and time.monotonic() < until:
            outcomes = [_end(process) for process in self._adopted()]
        for process in self._marked():
            _end(process)
            found = True
        return found

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _subreaper.end()

    def _adopted(self) -> Iterator[psutil.Process]:
        """Yields the processes whose parent this program has become, also those that have ended."""
        # of several scripts the last one ends what all of them left: it cannot be told whose it is
        if not _subreaper.works or _subreaper.n_scripts > 1:
            return
        for pid in _children():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                is_own = pid in self._before or pid in _own or os.getsid(pid) == os.getsid(0)
                if is_own:
                    continue
                process = psutil.Process(pid)
                if not _is_starting(process):
                    yield process

    def _marked(self) -> Iterator[psutil.Process]:
        """Yields the processes with the script's environment."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(self._name) == self._value:
                    yield process


class _Subreaper:
    """Whether this program becomes the parent of processes that a script leaves behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_scripts = 0
        self.works = False

    def begin(self) -> None:
        with self._lock:
            self.n_scripts += 1
            self.works = self._set(1)

    def end(self) -> None:
        with self._lock:
            self.n_scripts -= 1
            if not self.n_scripts:
                self._set(0)

    def _set(self, on: int) -> bool:
        if not sys.platform.startswith("linux"):
            return False
        with contextlib.suppress(OSError, AttributeError):
            return bool(ctypes.CDLL(None).prctl(SET_SUBREAPER, on, 0, 0, 0) == 0)
        return False


_subreaper = _Subreaper()


def _children() -> list[int]:
    """Returns the process ids of this program's children."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        # of each thread; quicker than a look at all processes
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                pids += map(int, file.read().split())
        return pids
    return [process.pid for process in psutil.Process().children()]


def keep(pid: int) -> None:
    """Notes a process in a session of its own that this program has started: it is no script's."""
    _own.add(pid)


def _is_starting(process: psutil.Process) -> bool:
    """Returns whether this program is about to note a child as its own: it is a job, or still is what this
    program is, between fork and exec.
    """
    try:
        is_job = process.environ().get(OWNER) == owner_mark()
        return bool(is_job or process.cmdline() == psutil.Process().cmdline())
    except (psutil.AccessDenied, psutil.ZombieProcess):
        return False


def _end(process: psutil.Process) -> bool:
    """Kills a process, or lets go of one that has ended. Returns whether that could be done."""
    try:
        if not _let_go(process):
            process.kill()
    except psutil.AccessDenied:
        return False
    except psutil.Error:
        pass
    return True


def _let_go(process: psutil.Process) -> bool:
    """Returns whether a child has ended; the system then forgets it."""
    with contextlib.suppress(psutil.Error, ChildProcessError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return bool(os.waitpid(process.pid, os.WNOHANG)[0])
    return False


def _in_words(process: psutil.Process) -> str:
    name = ""
    with contextlib.suppress(psutil.Error):
        name = f" ({process.name()})"
    return f"process {process.pid}{name}"
