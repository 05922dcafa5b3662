"""Ctrl-C, SIGTERM and SIGHUP: a command that is stopped by them still shows what it has, or passes them on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType


def signals_interrupt() -> None:
    """Makes SIGTERM and SIGHUP (a closed terminal) do what Ctrl-C does until the program ends, so that a command leaves
    no half-written file. A signal that is ignored stays ignored, as with nohup.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class Asked:
    """Whether a signal arrived: call it to find out. `by` names the signal."""

    def __init__(self) -> None:
        self.by = ""
        """Ctrl-C, SIGTERM or SIGHUP; "" if none has arrived."""

    def __call__(self) -> bool:
        return bool(self.by)


@contextlib.contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handles these signals by `handler` until the block ends. A signal that is ignored stays ignored, as with nohup or
    in a shell's background job. For the main thread only.
    """
    before = {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


@contextlib.contextmanager
def stop_asked() -> Iterator[Asked]:
    """Yields an `Asked` in which Ctrl-C, SIGTERM and SIGHUP are only noted until the block ends; a second one of the
    same kind interrupts.
    """
    asked = Asked()

    def note(number: int, frame: FrameType | None) -> None:
        asked.by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        signal.signal(number, signal.default_int_handler)

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), note):
        yield asked


class Heard:
    """Signals that arrived while another program was running, and the function that they are passed to."""

    def __init__(self) -> None:
        self._early: list[int] = []
        self._tell: Callable[[int], object] | None = None

    def tell(self, to: Callable[[int], object]) -> None:
        """Calls `to` with the number of each signal from now on, and of those that arrived earlier."""
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
    """Yields a `Heard` that receives Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP until the block ends; they interrupt nothing.

    A command that runs another program ends when that one does, and passes on the signals that the terminal does not
    send to it (`Heard.tell`).
    """
    heard = Heard()
    with _handled((signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP), heard):
        yield heard
