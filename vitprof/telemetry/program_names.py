"""What a person calls a program that runs: the name of its script, module or executable.

The kernel's own name of a process is cut after 15 characters, and that of most Python programs is
"python". A process of the same user is named by the file that it runs. Nothing else of its command
is kept: no folder, and no argument, which may be a secret.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from vitprof.masking import masked
from vitprof.telemetry.processes import PROC

MOST_NAME = 60
"""Characters of a name."""
MOST_COMMAND = 4096
"""Bytes of a command that are read: what is run stands at its beginning."""
DELETED = " (deleted)"
"""Linux adds it to the path of an executable that was replaced while it runs."""
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_MODULE = re.compile(r"\w+(?:\.\w+)*")
_LONG_WITH_VALUE = "--check-hash-based-pycs"
"""The only long option of Python whose value is the next argument."""


def name_of(pid: int, kernels_name: str) -> str:
    """Returns the name of a process, `kernels_name` where it is of another user or cannot be read."""
    name = ""
    with contextlib.suppress(OSError):
        if os.stat(f"{PROC}/{pid}").st_uid == os.geteuid():
            name = _by_its_file(pid, kernels_name)
    return _plain(name or kernels_name)


def _by_its_file(pid: int, kernels_name: str) -> str:
    """Returns the name of a process by the file that it runs. Raises `OSError` where that cannot be read."""
    path = os.readlink(f"{PROC}/{pid}/exe")
    executable = os.path.basename(path.removesuffix(DELETED))
    if not _PYTHON.fullmatch(executable):
        return executable
    with open(f"{PROC}/{pid}/cmdline", "rb") as file:
        command = os.fsdecode(file.read(MOST_COMMAND)).split("\0")
    return of_python(command, executable, kernels_name)


def of_python(command: Sequence[str], executable: str, kernels_name: str) -> str:
    """Returns the name of a Python program: "train.py", "python -m http.server".

    `command`: its arguments, the interpreter first. `executable`: the file name of the interpreter,
    which names a session without a script. A process that has replaced its command by a title, as
    Ray's workers do, has the kernel's name.
    """
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        return kernels_name
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == _LONG_WITH_VALUE:
            next(arguments, "")
        elif argument == "--":
            return os.path.basename(next(arguments, "")) or executable
        elif argument in ("-", ""):
            return executable
        elif not argument.startswith("-"):
            # a folder that is run may end with a slash
            return os.path.basename(argument.rstrip("/")) or executable
        elif not argument.startswith("--"):
            # options of one letter may stand together: -um http.server
            letter, value = _first_with_value(argument[1:])
            if letter == "c":
                return "python -c"
            if letter == "m":
                module = value or next(arguments, "")
                return f"python -m {module}" if _MODULE.fullmatch(module) else "python -m"
            if letter and not value:
                next(arguments, "")
    return executable


def _first_with_value(letters: str) -> tuple[str, str]:
    """Returns the first option among `letters` that has a value, and what of that stands behind it; "" for none."""
    found = re.search(r"[cmWX]", letters)
    return (found[0], letters[found.end() :]) if found else ("", "")


def _plain(name: str) -> str:
    """Returns a file's name as one short line without secrets."""
    line = "".join(sign if sign.isprintable() else "?" for sign in name)
    return masked(line)[:MOST_NAME]
