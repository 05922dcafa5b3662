"""Sends lines from any process of a trial's command to the program that started it, through a file.

The socket belongs to the process that trains, once it does. Files are opened, and DataLoaders made, in other processes
too, and earlier.
"""

from __future__ import annotations

import contextlib
import json
import os

TELL = "VITPROF_WATCH_TELL"
"""Environment variable: the file, which exists. Each line is a JSON list: a topic ("opened", "notice", "problem") and a
text."""


def tell(about: str, text: str) -> None:
    """Appends a line to the file. Does nothing where no file is named, or it cannot be written."""
    path = os.environ.get(TELL)
    if not path:
        return
    line = (json.dumps([about, text]) + "\n").encode()
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)  # appended in one write: lines of several processes do not mix
        try:
            os.write(file, line)
        finally:
            os.close(file)
