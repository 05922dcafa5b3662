"""A ticket for each job on this machine that has its turn or waits for it, also those of other homes, stores and users.

The store decides which of its own runs goes first (`vitprof.jobs.scheduling`). A run that has its turn there draws a
ticket here: a file in a folder of the machine, which its program keeps locked (flock(2)). The system releases the lock
when the program ends, however it ends, so no ticket outlives its job. Where a program was killed and its job still
runs, others wait for the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from vitprof.home import lock_dir
from vitprof.jobs.machine_lock import MAX_BYTES, RUNNING, WAITING, Holder, OtherTicket, caller, store_mark, tickets
from vitprof.store.owner import this_program

if sys.platform != "win32":
    import fcntl

TRIES, TRY_AGAIN_S = 100, 0.01
"""How often to try the lock under which tickets are drawn, and the time (s) between tries. It is held for microseconds,
unless its holder is suspended within these; then tickets are drawn without it."""
NOT_SEEN = "other programs' jobs on this machine cannot be seen ({}): whether one ran at the same time is not known"


FitTogether = Callable[[Holder], bool]
"""Returns whether a job may run beside that of another ticket."""


class Ticket:
    """This program's ticket for one run. Close it when the job has ended."""

    def __init__(self, run: int, device: str, *, shares: bool, store_url: str) -> None:
        """Draws the ticket. Where that fails, `why_not` says why, and the job waits for no other."""
        _, pid, started = this_program()
        self.holder = Holder(caller(), run, device, shares, time.time(), store_mark(store_url), pid, started)
        self.why_not = ""
        self._path: Path | None = None
        self._fd = -1
        self._number = 0
        if sys.platform == "win32":
            return
        try:
            self._draw(_folder())
        except OSError as error:
            self.why_not = NOT_SEEN.format(f"{lock_dir()}: {error.strerror or error}")

    def ahead(self, fits: FitTogether, *, anyway: bool = False) -> list[OtherTicket]:
        """Returns the tickets that this job waits for, running ones first. If there are none, or with `anyway`, it has
        its turn from here on.

        Checking and taking the turn is one step, under a lock: two jobs that ask at the same moment do not both begin.
        """
        if self._path is None:
            return []
        with contextlib.suppress(OSError), _one_at_a_time(self._path.parent):
            found = [] if anyway else [t for t in self.others() if t.running or t.number < self._number]
            found = [t for t in found if t.holder is None or not fits(t.holder)]
            if not found and self._path.suffix != RUNNING:
                self._path = self._path.rename(self._path.with_suffix(RUNNING))
            return sorted(found, key=lambda t: (not t.running, t.number))
        return []

    def others(self) -> list[OtherTicket]:
        """Returns the tickets of all other jobs on this machine."""
        return [] if self._path is None else [t for t in tickets() if t.path.name != self._path.name]

    def begun(self, job_pid: int) -> None:
        """Records the job's process id: if this program is killed, others wait until the job has ended too."""
        if self._path is None or job_pid == self.holder.pid:
            return
        with contextlib.suppress(OSError, psutil.Error):
            started = psutil.Process(job_pid).create_time()
            self.holder = dataclasses.replace(self.holder, job_pid=job_pid, job_started=started)
            self._write()

    def close(self) -> None:
        """Gives the ticket back. May be called again."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._path = None

    def _draw(self, folder: Path) -> None:
        hidden = folder / f".{secrets.token_hex(8)}"
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
            with _one_at_a_time(folder):
                self._number = 1 + max((t.number for t in tickets()), default=0)
                self._path = hidden.rename(folder / f"{self._number:08d}-{hidden.name[1:]}{WAITING}")
        except OSError:
            os.close(self._fd)
            hidden.unlink(missing_ok=True)
            raise

    def _write(self) -> None:
        text = json.dumps(dataclasses.asdict(self.holder)).encode()
        os.pwrite(self._fd, text.ljust(MAX_BYTES), 0)  # always one length, in one write: nobody reads half of it


def _folder() -> Path:
    """Returns the folder of tickets; every user may add files, and remove only their own. Raises `OSError`."""
    folder = lock_dir()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)  # as /tmp: mkdir's own mode is cut by the umask
    return folder


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for _ in range(TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(TRY_AGAIN_S)
        yield
    finally:
        os.close(lock)
