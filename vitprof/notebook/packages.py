"""Packages that an installation of the core alone lacks: one line that says what to install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vitprof.errors import VitprofError
from vitprof.program import missing_words


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turns the lack of a package within the block into a `VitprofError` that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "vitprof").partition(".")[0] == "vitprof":
            raise
        raise VitprofError(missing_words(error)) from None
