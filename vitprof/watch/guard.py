"""Catches every error in vitprof: watching is given up, with one line, and training goes on.

A trial of a tournament ends instead: it runs only to be watched, and its script would train to its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from vitprof.watch.on_import import TRIAL_OVERRIDES


class Guard:
    """A wrapper for all calls into vitprof: calls functions until one fails, and none after that."""

    def __init__(self) -> None:
        self.given_up = False
        self.why = ""
        """Why watching was given up; "" where it was not, or had enough steps."""
        self.at_end: Callable[[], None] | None = None
        """Called when watching is given up."""

    def __call__(self, function: Callable[..., None], *args: object) -> None:
        """Calls `function(*args)` unless watching has been given up. An error ends watching, with one line."""
        if self.given_up:
            return
        try:
            function(*args)
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")

    def give_up(self, why: str) -> None:
        """Ends watching and says so once, on standard error. In a trial, ends the script with SIGTERM."""
        if self.given_up:
            return
        self.given_up = True
        self.why = why.splitlines()[0] if why else "unknown"
        trial = bool(os.environ.get(TRIAL_OVERRIDES))
        then = "the trial ends" if trial else "training goes on"
        sys.stderr.write(f"vitprof: gave up watching ({self.why}); {then}\n")
        if self.at_end is not None:
            with contextlib.suppress(Exception):  # watching has ended already
                self.at_end()
        if trial:  # nothing else would end it after its steps
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGTERM)
