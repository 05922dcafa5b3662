"""Training in a process that the script forks from one that trains: it is noted, and not recorded.

Such a process has all hooks. What they see is no part of its parent's loop, so no event of it is
kept: most are helpers, and workers of loaders. Where it trains itself, the steps of its parent are
not all of the script's.
"""

from __future__ import annotations

import contextlib
import mmap

from vitprof.watch.events import OF_TRAINING, Row


class ForkedTraining:
    """Whether a process trains that was forked from this one. Memory that both share says so: it needs
    no descriptor, which a script may close, and no program that listens."""

    def __init__(self) -> None:
        self._sign: mmap.mmap | None = None
        """One byte: 1 once such a process has trained."""
        self._is_told = False
        # without memory left nothing is noted
        with contextlib.suppress(OSError):
            self._sign = mmap.mmap(-1, 1)

    def note(self, row: Row) -> None:
        """Takes an event in the forked process: of all of them it notes that one was of training."""
        if self._sign is not None and row[0] in OF_TRAINING:
            self._sign[0] = 1

    def is_news(self) -> bool:
        """Returns whether such a process has trained, the first time that this is so."""
        if self._is_told or self._sign is None or not self._sign[0]:
            return False
        self._is_told = True
        return True
