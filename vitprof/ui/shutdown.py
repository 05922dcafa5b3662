"""What to close when the server ends, so that its jobs stop and keep what they measured."""

from __future__ import annotations

import atexit
import traceback
from collections.abc import Callable

_closers: list[Callable[[], object]] = []


def at_end(close: Callable[[], object]) -> None:
    """Registers `close` to be called when the server ends, before those that were registered earlier."""
    _closers.append(close)


def end() -> None:
    """Calls each registered function once, the last one first. Errors are printed, and the rest are still called.

    The server calls this when it shuts down, because a process that then ends by a signal does not run atexit's
    functions.
    """
    while _closers:
        try:
            _closers.pop()()
        except Exception:
            traceback.print_exc()


atexit.register(end)
