"""Ctrl-C, SIGTERM and SIGHUP, which let a command show what it has; and signals that are meant for another program."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


def signals_interrupt() -> None:
    """Makes SIGTERM and SIGHUP, which comes when the terminal is closed, do what Ctrl-C does, until the program ends: a
    command then leaves no half-written file. One that is ignored stays ignored, as with nohup.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class Asked:
    """Whether a signal came; `by` says which."""

    def __init__(self) -> None:
        self.by = ""
        """Ctrl-C, SIGTERM or SIGHUP; "" while none came."""

    def __call__(self) -> bool:
        return bool(self.by)


@contextlib.contextmanager
def stop_asked() -> Iterator[Asked]:
    """Until the end of the block, Ctrl-C, SIGTERM and SIGHUP are only noted in what is given; a second one
    interrupts.

    A signal that is ignored stays ignored, as in a shell's background job. For the main thread only.
    """
    asked = Asked()

    def note(number: int, frame: FrameType | None) -> None:
        asked.by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        signal.signal(number, signal.default_int_handler)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, note) for n in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


class Heard:
    """Signals that came while another program runs, and who is told of them."""

    def __init__(self) -> None:
        self._early: list[int] = []
        self._tell: Callable[[int], object] | None = None

    def tell(self, to: Callable[[int], object]) -> None:
        """Has `to` called with the number of each signal, those included that came before it was known."""
        self._tell = to
        while self._early:
            to(self._early.pop(0))

    def __call__(self, number: int, _frame: FrameType | None = None) -> None:
        if self._tell is None:
            self._early.append(number)
        else:
            self._tell(number)


@contextlib.contextmanager
def signals_heard() -> Iterator[Heard]:
    """Until the end of the block Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP interrupt nothing: whoever runs another program
    ends when that does, and tells it what the terminal does not (`Heard.tell`).

    A signal that is ignored stays ignored, as with nohup. For the main thread only.
    """
    heard = Heard()
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, heard) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
