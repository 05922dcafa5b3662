"""Lines from any process below a trial's command to the program that started it, through a file.

The socket is for the process that trains, once it does. What is opened, and what becomes of a DataLoader as it is
made, is known in other processes too, and before.
"""

from __future__ import annotations

import contextlib
import json
import os

TELL = "VITPROF_WATCH_TELL"
"""Names the file; it is there. Each line is a JSON list: what it is about ("opened", "notice", "problem"), a text."""


def tell(about: str, text: str) -> None:
    """Adds a line. Silent where nobody asked for it, or it cannot be written."""
    path = os.environ.get(TELL)
    if not path:
        return
    line = (json.dumps([about, text]) + "\n").encode()
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)  # short lines of several processes do not mix
        try:
            os.write(file, line)
        finally:
            os.close(file)
