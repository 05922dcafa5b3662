"""Ctrl-C that lets a command show what it has so far."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Until the end of the block, Ctrl-C and SIGTERM only make the given function true; a second one interrupts.

    A signal that is ignored stays ignored, as in a shell's background job. For the main thread only.
    """
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, signal.default_int_handler)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, note) for n in heard}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
