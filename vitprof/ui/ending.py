"""What is closed when the server ends: its jobs stop and keep what they measured."""

from __future__ import annotations

import atexit
import traceback
from collections.abc import Callable

_closers: list[Callable[[], object]] = []


def at_end(close: Callable[[], object]) -> None:
    """Has `close` called when the server ends, before those that were given earlier."""
    _closers.append(close)


def end() -> None:
    """Closes everything once. What fails is printed, and the rest is closed all the same.

    The server calls it when it is told to stop, since a process that then ends by the signal runs nothing of atexit's.
    """
    while _closers:
        try:
            _closers.pop()()
        except Exception:
            traceback.print_exc()


atexit.register(end)
