"""Runs of the store in Python, for a notebook or a script: `vitprof.runs()`, `vitprof.run(1)`. See docs/python.md.

`listing` reads runs, `one_run` is a run as an object, `figures` draws. The store is open only while it is read, and
nothing is imported before it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vitprof.errors import VitprofError
from vitprof.program import missing_words


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turns the error of a missing package in the block into a `VitprofError` that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "vitprof").partition(".")[0] == "vitprof":
            raise
        raise VitprofError(missing_words(error)) from None
