"""Which Python runs a user's own script, and what that has installed."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

IS_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?")
LIMIT_S = 30.0
"""How long a Python may take to say what it has: it starts, and imports nothing."""
LOOK = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


def python_of(command: Sequence[str]) -> list[str]:
    """Returns the command of the Python that runs a script; empty where that is not known.

    It is the program itself (`python train.py`), or the one that the first line of a program names (`torchrun`,
    `accelerate`).
    """
    program = command[0] if command else ""
    if IS_PYTHON.fullmatch(os.path.basename(program)):
        return [program]
    path = shutil.which(program)
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            first = file.readline(1000).decode(errors="replace")
    except OSError:
        return []
    if not first.startswith("#!"):
        return []
    interpreter = first[2:].split()
    if interpreter and os.path.basename(interpreter[0]) == "env":
        del interpreter[0]
    if not interpreter or not IS_PYTHON.fullmatch(os.path.basename(interpreter[0])):
        return []
    return [interpreter[0]]


def missing_modules(python: Sequence[str], modules: Sequence[str]) -> frozenset[str]:
    """Returns those modules that a Python would not find; none where it does not say."""
    try:
        ended = subprocess.run(
            [*python, "-c", LOOK, *modules],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
        )
        return frozenset(json.loads(ended.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return frozenset()
