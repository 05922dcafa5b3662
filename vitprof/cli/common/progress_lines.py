"""Progress as lines in a log: what a command that takes long says where no terminal shows a bar."""

import time
from collections.abc import Callable

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.program import STILL_RUNNING

LINE_EVERY_S = 30.0
"""Seconds between two lines: a log shows that a command goes on, and stays short. A command that takes
less time prints none."""


class ProgressLines:
    """A line on standard error every `LINE_EVERY_S`, where that is a file or another program.

    `write` prints a line with vitprof's name in front, `clock` returns seconds.
    """

    def __init__(
        self,
        write: Callable[[str], object] = terminal.remark,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_s = clock() + LINE_EVERY_S

    @property
    def is_due(self) -> bool:
        """Returns whether it is time for a line."""
        return self._clock() >= self._next_s

    def __call__(self, words: str, fraction: float | None = None) -> None:
        """Prints a line, if it is time for one. `fraction`: the share that is done, 0 to 1; None while
        that is not known.
        """
        if not self.is_due:
            return
        self._next_s = self._clock() + LINE_EVERY_S
        done = "" if fraction is None else f" ({formats.percent(fraction)})"
        self._write(f"{STILL_RUNNING}{words}{done}")
