"""A line at the bottom of a terminal, below what a user's script prints. Only the standard library is needed."""

import contextlib
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

MIN_ROWS = 5
"""A terminal with fewer rows shows no status line."""
REDRAW_EVERY_S = 0.5
ANEW_EVERY_S = 10.0
"""How often the scrolling region is set again, in seconds: the other program may have reset the terminal."""

# ECMA-48 and DEC: https://vt100.net/docs/vt510-rm/chapter4.html
SAVE = "\0337"
RESTORE = "\0338"
WHOLE_SCREEN = SAVE + "\033[r" + RESTORE
DOWN_AND_UP = "\033D\033[A"
"""Scrolls by one row if the cursor is in the last one, keeping its column; otherwise changes nothing."""
ERASE_BELOW = SAVE + "\033[B\r\033[J" + RESTORE
ERASE_ROW = "\033[2K"


class StatusLine:
    """The bottom row of the terminal at `fd`, as long as its process group is the one in the foreground.

    Another program writes to that terminal, and its output scrolls above the row, which is taken out of
    the scrolling region (DECSTBM), as apt does for its progress bar. Each change is one `write`, which a
    terminal handles as a whole, and leaves the cursor and its attributes as the other program had them.
    """

    def __init__(self, fd: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._clock = clock
        self._size: os.terminal_size | None = None
        """Size of the terminal when its bottom row was reserved; None while none is reserved."""
        self._anew = False
        """Whether another program may have changed the region since it was set."""
        self._set_s = float("-inf")
        """When the region was set last."""
        self._drawn_s = float("-inf")

    def show(self, text: str) -> None:
        """Shows `text` (ASCII), at most twice a second.

        Shows nothing while another program reads single keys, as an editor does.
        """
        now = self._clock()
        if now - self._drawn_s < REDRAW_EVERY_S:
            return
        try:
            if not self._is_ours():
                self._anew = True
                return
            size = os.get_terminal_size(self._fd)
            if size.lines < MIN_ROWS:
                self.hide()
                return
            self._draw(text, size, now)
        except (OSError, termios.error):  # the terminal is gone
            return

    def hide(self) -> None:
        before = self._size
        self._size = None
        if before is None:
            return
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._fd)
            if size == before:
                self._write(f"{SAVE}\033[r\033[{size.lines};1H{ERASE_ROW}{RESTORE}")
            else:
                self._write(WHOLE_SCREEN + DOWN_AND_UP + ERASE_BELOW)

    def _draw(self, text: str, size: os.terminal_size, now: float) -> None:
        room = ""
        if size != self._size or self._anew or now - self._set_s >= ANEW_EVERY_S:
            room = WHOLE_SCREEN + DOWN_AND_UP
            if self._size not in (None, size):
                # the old line is in a row that scrolls now
                room += ERASE_BELOW
            self._size = size
            self._anew = False
            self._set_s = now
        region = f"\033[1;{size.lines - 1}r" if room else ""
        shown = f" {text} "[: size.columns - 1]
        line = f"\033[{size.lines};1H\033[0;7m{shown}\033[0m\033[K"
        self._drawn_s = now
        self._write(f"{room}{SAVE}{region}{line}{RESTORE}")

    def _is_ours(self) -> bool:
        in_front = os.tcgetpgrp(self._fd) == os.getpgrp()
        if not in_front:
            return False
        # without ICANON, a program such as an editor reads single keys and draws the whole screen
        local_modes = termios.tcgetattr(self._fd)[3]
        return bool(local_modes & termios.ICANON)

    def _write(self, text: str) -> None:
        remaining = text.encode("ascii", "replace")
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]


def can_show(stream: TextIO) -> bool:
    """Returns whether `stream` is a terminal that can show a status line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


@contextlib.contextmanager
def status_line(stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a line at the bottom of the terminal `stream`, by default standard
    error.

    The row is given back when the block ends, and while the program is suspended. For the main thread
    only.
    """
    stream = stream or sys.stderr
    if not can_show(stream):
        yield lambda _text: None
        return
    line = StatusLine(stream.fileno())

    def suspend(_number: int, _frame: FrameType | None) -> None:
        line.hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # returns when the program goes on
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)

    before = signal.getsignal(signal.SIGTSTP)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, suspend)
    try:
        yield line.show
    finally:
        line.hide()
        signal.signal(signal.SIGTSTP, before or signal.SIG_DFL)
