"""Processes that end with the one that started them, even where that is killed: on Linux."""

import contextlib
import ctypes
import os
import signal

ENDS_WITH = "VITPROF_ENDS_WITH"
"""Environment variable: the number of the process with which one that it starts shall end."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""


def signal_when_the_parent_ends(number: signal.Signals) -> None:
    """Has Linux send this process a signal as soon as the thread ends that started it.

    Other systems do not have that: nothing happens there.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with_the_named_parent() -> None:
    """Has this process asked to end (SIGTERM) with its parent, if the environment names that."""
    named = os.environ.pop(ENDS_WITH, "")
    parent = os.getppid()
    if named != str(parent):
        return
    signal_when_the_parent_ends(signal.SIGTERM)
    if os.getppid() != parent:  # it had ended before Linux was asked
        os.kill(os.getpid(), signal.SIGTERM)
