"""The tickets of this machine's jobs, as any program finds them: whose they are, and whether they still count."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from vitprof.formats import moment
from vitprof.home import lock_dir
from vitprof.program import program
from vitprof.store.owner import is_alive, this_program

if sys.platform != "win32":
    import fcntl

WAITING, RUNNING = ".waiting", ".running"
"""Suffixes of a ticket's file name."""
MAX_BYTES, MAX_TICKETS = 4096, 1000
"""Bytes to read of a ticket, and tickets to read: any user can put files into the folder."""


@dataclass(frozen=True)
class Holder:
    """The owner of a ticket, as its program wrote it."""

    program: str
    """The program's name for people: "vitprof run", "the dashboard"."""
    run: int
    """The run's number in the store of that program."""
    device: str
    """The queue that the job is in, see `turns.queue_of`."""
    shares: bool
    """Whether it may run beside others (`RunConfig.share_machine`)."""
    since_s: float
    """When the ticket was drawn, in seconds since the epoch."""
    store: str
    """Which store the run is in: `store_mark` of its URL."""
    pid: int
    """The program's process id."""
    started: float
    """Start of that process, in seconds since the epoch."""
    job_pid: int = 0
    """Process id of the job's own process; 0 until there is one."""
    job_started: float = 0.0
    """Start of that process, in seconds since the epoch."""


@dataclass(frozen=True)
class OtherTicket:
    """A ticket of any program on this machine, as it is now."""

    path: Path
    number: int
    """Its place in the queue."""
    holder: Holder | None
    """None where it cannot be read; other jobs wait for it even so."""
    uid: int
    """The user who owns the file."""

    @property
    def running(self) -> bool:
        """Returns whether its job has its turn."""
        return self.path.suffix == RUNNING

    @property
    def alive(self) -> bool:
        """Returns whether its program still runs; True where that is not known."""
        return self.holder is None or is_alive(this_program()[0], self.holder.pid, self.holder.started)

    @property
    def who(self) -> str:
        """Returns the owner in words: program, process, user (if another one), and since when."""
        if self.holder is None:
            return f"a program of user {_user(self.uid)}"
        parts = [f"process {self.holder.pid}"]
        if self.uid != os.getuid():
            parts.append(f"user {_user(self.uid)}")
        state = _state(self.holder)
        parts.append(f"since {moment(self.holder.since_s)}{state}")
        return f"{self.holder.program}, {', '.join(parts)}"


def tickets() -> list[OtherTicket]:
    """Returns all tickets of this machine whose job is waiting or running, by number. Removes this user's stale ones.

    Raises nothing: a file that cannot be opened is skipped.
    """
    if sys.platform == "win32":
        return []
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(lock_dir().iterdir())[:MAX_TICKETS]:
            number, dash, _ = path.name.partition("-")
            if dash and number.isdecimal() and path.suffix in (WAITING, RUNNING) and (one := _look(path, int(number))):
                found.append(one)
    return found


def caller() -> str:
    """Returns this program's name for people, such as "the dashboard"."""
    if "streamlit" in sys.modules:
        return "the dashboard"
    name, command = Path(sys.argv[0]).name, (sys.argv[1:] or [""])[0]
    if name in ("vitprof", "__main__.py") and command.replace("-", "").isalpha():
        return f"{program()} {command}"
    return "a watched script" if name == "-c" else name or "a program"


def store_mark(url: str) -> str:
    """Returns a hash that identifies a store without revealing its URL."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _look(path: Path, number: int) -> OtherTicket | None:
    """Returns the ticket, if its job is still there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has just been given back, or is a link
        return None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return None
        holder = _read(os.read(fd, MAX_BYTES))
        if _is_held(fd) or (holder is not None and _job_lives(holder)):
            return OtherTicket(path, number, holder, about.st_uid)
        if about.st_uid == os.getuid():
            path.unlink(missing_ok=True)
        return None
    except OSError:
        return None
    finally:
        os.close(fd)


def _is_held(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _job_lives(holder: Holder) -> bool:
    return holder.job_pid > 0 and is_alive(this_program()[0], holder.job_pid, holder.job_started)


def _read(text: bytes) -> Holder | None:
    try:
        values = json.loads(text)
        found = Holder(**values)
        kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}
        fields = dataclasses.fields(Holder)
        sound = all(isinstance(values.get(f.name, f.default), kinds[str(f.type)]) for f in fields)
        return found if sound and found.program.isprintable() and found.device.isprintable() else None
    except (ValueError, TypeError, RecursionError):
        return None


def _state(holder: Holder) -> str:
    """Returns what is wrong with the program, in words; "" where nothing is."""
    if not is_alive(this_program()[0], holder.pid, holder.started):
        return "; it was killed, and its job goes on"
    with contextlib.suppress(psutil.Error):
        if psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED:
            return "; it is stopped"
    return ""


def _user(uid: int) -> str:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
