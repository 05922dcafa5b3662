"""A thread in the script's process that the script cannot see and that takes no signal of it."""

from __future__ import annotations

import _thread
import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

ERRORS_OF_CODE = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
}
"""Signals that a thread causes itself. They stay open: a handler such as faulthandler's says where
it happened."""
_MADE: weakref.WeakSet[OwnThread] = weakref.WeakSet()
"""All of this process: one that was started has no identifier before it comes to run."""
_RUNNING: dict[int, OwnThread] = {}
"""Those that run, by their identifiers."""


class OwnThread:
    """A thread that ends with the process.

    `threading` does not know it: a script may join all of `threading.enumerate()`, or wait until
    `threading.active_count()` is 1. All signals are blocked in it. A signal that the script has
    blocked in its own threads, to wait for it, would else go to this one and end the process.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        """`run` has to report its own errors: nothing is printed where it raises one."""
        self.name = name
        self.native_id = 0
        """The number by which the system knows it; 0 before it has run."""
        self._run = run
        self._running = _thread.allocate_lock()
        """Held from the start of the thread to its end."""
        _MADE.add(self)

    def start(self) -> None:
        _hide_from_threading()
        open_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._running.acquire()
        try:
            # a new thread has the mask of the one that starts it
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - ERRORS_OF_CODE)
            _thread.start_new_thread(self._live, ())
        except BaseException:
            self._running.release()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, open_before)

    def join(self, limit_s: float) -> bool:
        """Waits for the thread's end, at most for so long. Returns whether it has ended."""
        has_ended = self._running.acquire(timeout=limit_s)
        if has_ended:
            self._running.release()
        return has_ended

    def _live(self) -> None:
        ident = _thread.get_ident()
        self.native_id = _thread.get_native_id()
        _RUNNING[ident] = self
        try:
            self._run()
        except BaseException:
            pass  # Python would print it on the script's standard error
        finally:
            del _RUNNING[ident]
            self._running.release()

    def has_not_been_forked(self) -> None:
        """Notes, in a forked process, that there is no such thread."""
        self._running = _thread.allocate_lock()


def native_ids() -> frozenset[int]:
    """Returns the numbers by which the system knows the threads of ours that run."""
    return frozenset(thread.native_id for thread in list(_RUNNING.values()))


@functools.cache
def _hide_from_threading() -> None:
    """Keeps `threading.current_thread()` from listing a thread of ours.

    It lists each thread in which it is called and that it does not know, and anything may call it
    there: a tracker's library, `logging`, the script's callbacks of the garbage collector. A thread
    that is listed so cannot be joined.
    """
    kind: Any = threading._DummyThread
    listing: Any = threading._active_limbo_lock  # type: ignore[attr-defined]
    listed: Any = threading._active  # type: ignore[attr-defined]
    begin = kind.__init__

    @functools.wraps(begin)
    def begin_unlisted(self: Any) -> None:
        ours = _RUNNING.get(_thread.get_ident())
        if ours is None:
            begin(self)
            return
        with listing:  # an RLock, so that nobody sees the list meanwhile
            begin(self)
            listed.pop(_thread.get_ident(), None)
        self.name = ours.name

    kind.__init__ = begin_unlisted
    os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for thread in list(_MADE):
        thread.has_not_been_forked()
    _RUNNING.clear()
