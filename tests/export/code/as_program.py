"""Runs a script as Python does where it is named on the command line, in a process that has all but vitprof."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path


def run(path: str) -> str:
    """Runs the script's demonstration in its own folder and returns what it prints; vitprof cannot be imported."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "vitprof":
            sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["vitprof"] = None  # type: ignore[assignment]
    os.chdir(Path(path).parent)
    sys.argv = ["script.py", "--demo"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path("script.py", run_name="__main__")
    return printed.getvalue()
