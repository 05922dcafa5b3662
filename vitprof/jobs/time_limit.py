"""Work with a time limit, after which it is given up."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from vitprof.errors import VitprofError
from vitprof.formats import seconds

T = TypeVar("T")
ENDS_S = 1.0
"""How long (s) to wait for work that was given up: its thread gets the exception between two Python instructions."""


class TookTooLong(VitprofError):
    """Work that was given up."""


class _GivenUp(SystemExit):
    """Raised in the thread of work that was given up: `except Exception` does not catch it, and a thread that ends
    with it prints nothing.
    """


def in_time(limit_s: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, or raises what it raises. Raises `TookTooLong` after `limit_s` seconds.

    The work runs in a thread, which is ended at the limit; if it is inside a call of a C library, it ends after that
    call, or with the program. `work` must hold nothing that others wait for, such as a lock or a transaction.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def do() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, name="vitprof-in-time", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_GivenUp))
        thread.join(ENDS_S)
        raise TookTooLong(f"it took longer than {seconds(limit_s)} and was given up")
    if errors:
        raise errors[0]
    return results[0]
