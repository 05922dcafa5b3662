"""Starts the script of `vitprof watch` where the command line itself cannot be imported: a package
is missing, or is too old or too new. Nothing here needs a package.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from vitprof.errors import one_line
from vitprof.program import missing_core_words, why_not_started

WITH_VALUE = ("--name", "--steps", "--detach-after", "--log-to", "--json", "--events")
"""Options of `watch` that take the next word. A test holds them against the command's own."""
EXIT_NOT_FOUND = 127
"""A shell's exit status for a command that it cannot find."""


def script_of(arguments: Sequence[str]) -> list[str]:
    """Returns the script's command in the arguments of the command line; empty where they are not
    those of `watch`, or only ask for its help.
    """
    if not arguments or arguments[0] != "watch":
        return []
    command: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        if word == "--":
            return [*command, *words]
        if word == "--help":
            return []
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            command.append(word)
    return command


def why(error: Exception) -> str:
    """Returns in one line why the command line cannot be imported, and what to install."""
    if isinstance(error, ModuleNotFoundError):
        return missing_core_words(error)
    return one_line(error)


def become(command: Sequence[str]) -> NoReturn:
    """Makes this process the script, so its signals and its exit status are its own. Ends with 127
    where it cannot be started.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Python ignores these two from its start, and a program that it becomes would go on ignoring
    # them: `script | head` would end with an error instead of silently. `subprocess` gives them
    # back for the same reason.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print_line(f"cannot start {command[0]}: {why_not_started(command[0], error)}")
        sys.exit(EXIT_NOT_FOUND)


def print_line(line: str) -> None:
    """Prints a line on standard error; nothing where that is closed."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"vitprof: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
