"""Work of which nobody may have to wait without end: given up after a time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from vitprof.errors import VitprofError
from vitprof.formats import seconds

T = TypeVar("T")
ENDS_S = 1.0
"""How long work that was given up may take to notice: a thread hears of it between two of Python's instructions."""


class TookTooLong(VitprofError):
    """Work that was given up."""


class _GivenUp(SystemExit):
    """Raised in the thread of work that was given up: nothing catches it, and a thread that ends by it says nothing."""


def in_time(limit_s: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, or raises what it raises. Raises `TookTooLong` after `limit_s`.

    It is done in a thread, which is ended then; one that sits in a single call of a C library ends after that call, or
    with the program. `work` must hold nothing that others wait for, such as a lock or a transaction.
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
