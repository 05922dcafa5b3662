"""Ctrl-C and SIGTERM, which let a command show what it has so far."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


def sigterm_interrupts() -> None:
    """Makes SIGTERM do what Ctrl-C does, until the program ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Asked:
    """Whether a signal came; `by` says which."""

    def __init__(self) -> None:
        self.by = ""
        """Ctrl-C or SIGTERM; "" while none came."""

    def __call__(self) -> bool:
        return bool(self.by)


@contextlib.contextmanager
def stop_asked() -> Iterator[Asked]:
    """Until the end of the block, Ctrl-C and SIGTERM are only noted in what is given; a second one
    interrupts.

    A signal that is ignored stays ignored, as in a shell's background job. For the main thread only.
    """
    asked = Asked()

    def note(number: int, frame: FrameType | None) -> None:
        asked.by = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        signal.signal(number, signal.default_int_handler)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, note) for n in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
