"""Signals that reach vitprof while a script runs, and whether the script got them too.

Schedulers and people send them in two ways. Some are sent to vitprof alone (`kill -USR1 PID`, and
batch scripts that got one by Slurm's `--signal=B:USR1@60` and hand it on): such a one has to be
passed on, or the script never learns of it. Others are sent to the whole process group (Ctrl-C on a
terminal, `kill -- -PGID`) or to each process of a job step (Slurm's `--signal=USR1@60`). The script
has such a one, and to pass it on would call its handler a second time, in the midst of the
checkpoint that the first call writes. What arrives does not say which it was, so a process that
only holds signals stands in the same group: what it holds was sent to all.

`timeout`, `tini -g` and `dumb-init` need no such thing, as they put the program into a group of its
own. A watched script stays in that of vitprof: job control and Ctrl-C work as without it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the script as well as to vitprof."""
END = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a program to end."""
NOT_RELAYED = frozenset(
    getattr(signal, f"SIG{name}")
    # cannot be handled; job control and what is ignored by default, each process's own affair;
    # errors of the code that runs
    for name in (
        *("KILL", "STOP"),
        *("CHLD", "CONT", "TSTP", "TTIN", "TTOU", "URG", "WINCH"),
        *("ABRT", "BUS", "FPE", "ILL", "PIPE", "SEGV", "SYS", "TRAP", "XFSZ"),
    )
    if hasattr(signal, f"SIG{name}")
)
OTHERS = signal.valid_signals() - NOT_RELAYED - set(END)
"""Signals that mean something to the script only: SIGUSR1, SIGALRM, those of real time. Most would
end vitprof, and leave the script behind."""
GRACE_S = 0.1
"""How long (s) a signal that is sent to each process by turns may take to reach all of them."""
SIGNAL_CHECK_S = 0.005

Receiver = Callable[[int, bool], object]
"""Is called with a signal's number, and whether the whole process group got it."""


class GroupWitness:
    """A process in this program's group that holds the signals it gets. It ends with this one."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = _start_holder()
        self._held: set[int] = set()
        """What earlier holders held that has not been asked for yet."""

    @property
    def works(self) -> bool:
        """Returns whether it can be told what was sent to the group."""
        holder = self._holder
        return holder is not None and holder.poll() is None and _pending(holder) is not None

    def saw(self, number: int) -> bool:
        """Returns whether a signal that arrived here just now was sent to the whole group."""
        until = time.monotonic() + GRACE_S
        while not self._holds(number):
            if time.monotonic() > until:
                return False
            time.sleep(SIGNAL_CHECK_S)
        # a signal stays with its holder: another one tells the next of its kind
        earlier = self._holder
        self._holder = _start_holder()
        if earlier is not None:
            self._held |= _pending(earlier) or set()
            _end(earlier)
        self._held.discard(number)
        return True

    def close(self) -> None:
        if self._holder is not None:
            _end(self._holder)

    def _holds(self, number: int) -> bool:
        held = _pending(self._holder) if self._holder is not None else None
        return number in self._held or number in (held or ())


def _start_holder() -> subprocess.Popen[bytes] | None:
    """Starts a process with all signals blocked that ends with this one; None where that fails."""
    open_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # what is blocked here is blocked there from its first moment
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        return subprocess.Popen(
            ["cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, open_before)


def _end(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.communicate()


def _pending(holder: subprocess.Popen[bytes]) -> set[int] | None:
    """Returns the signals that wait in a process; None where the system does not say."""
    mask = None
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{holder.pid}/status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "ShdPnd":
                mask = int(value, 16)
    if mask is None:
        return None
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


def signal_name(number: int) -> str:
    """Returns a signal's name; of those of real time only the first and the last one have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shares_group(pid: int) -> bool:
    """Returns whether a process is in this program's group; one that has ended is not."""
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


class SignalRelay:
    """Signals that arrived while a script was running, and the function that receives them."""

    def __init__(self, witness: GroupWitness) -> None:
        self._witness = witness
        self._early: list[int] = []
        self._receiver: Receiver | None = None

    def to(self, receiver: Receiver) -> None:
        """Calls `receiver` for each signal from now on, and for those that arrived earlier: when
        these came, the script had not been started, so it has none of them.
        """
        self._receiver = receiver
        while self._early:
            receiver(self._early.pop(0), False)

    def __call__(self, number: int, _frame: FrameType | None = None) -> None:
        if self._witness.works:
            to_group = self._witness.saw(number)
        else:
            to_group = number in FROM_THE_TERMINAL
        if self._receiver is None:
            self._early.append(number)
        else:
            self._receiver(number, to_group)
