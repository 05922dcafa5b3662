"""What all commands share: printing, checking output files, reading numbers, and exit statuses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from vitprof.config.bounds import Bounds
from vitprof.errors import ConfigError
from vitprof.names import MAX_NAME, NAME_CUT, cut_name, harmless, why_no_name
from vitprof.recording.columns import SCHEMA_VERSION

RUN = "RUN"
EXIT_FAILED, EXIT_BAD_VALUE, EXIT_STOPPED = 1, 2, 130
VERDICT_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
"""Verdict -> colour of the word on the terminal."""
PIPE_WIDTH = 400
"""Width in columns of a table that goes to a file or another program: wide enough for one line for each run."""

MOST_SAID = 1000
"""Length of the longest message, in characters. A longer one, which repeats a long value, loses its middle."""
SAID_OF_THE_END = 300
"""Characters that are kept at the end of such a message, where it says what to do."""


class HarmlessConsole(Console):
    """A console that prints brackets and colons as they are, and replaces characters that a terminal would obey."""

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **more)

    def render_str(self, text: str, **more: Any) -> Text:
        return super().render_str(harmless(text), **more)


out = HarmlessConsole()
err = HarmlessConsole(stderr=True)

JSON_HELP = "print one JSON object and nothing else"
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


def reader(name: str, kind: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """Returns a parser of numbers. It raises `ConfigError` that names the value: not all versions of Typer do."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(name, text, allowed) from None

    return read


def within(name: str, bounds: Bounds) -> Callable[[str], Any]:
    """Returns a parser of numbers that raises `ConfigError` for a number outside `bounds`."""
    read = reader(name, int if bounds.whole else float, bounds.allowed)

    def checked(text: str) -> Any:
        value = read(text)
        bounds.check(name, value)
        return value

    return checked


def run_id(help_text: str) -> Any:
    """Returns an argument that takes the id of a run."""
    return typer.Argument(
        metavar=RUN, help=help_text, parser=reader(RUN, int, "give a whole number, as `runs` lists them")
    )


def check_output(path: Path | None, option: str = "output") -> None:
    """Raises `ConfigError` if the file of an option cannot be written: before the work is done rather than after."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(option, str(path), "it is a directory; give a file")
    if path.exists() and not path.is_file():  # /dev/null, /dev/stdout: a new file would be renamed over it
        raise ConfigError(option, str(path), "it is a device or a pipe; give a file")
    if not path.parent.is_dir():
        raise ConfigError(option, str(path), f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(option, str(path), f"{path.parent} cannot be written to")


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object, see `json_text`."""
    print_text(json_text(value))


def json_text(value: dict[str, Any]) -> str:
    """Returns `value` as the text of a JSON object, with the schema version in front."""
    return json.dumps({"schema_version": SCHEMA_VERSION} | value, indent=2, allow_nan=False) + "\n"


def print_text(text: str) -> None:
    """Prints text as it is, for another program or a file."""
    sys.stdout.write(text)
    sys.stdout.flush()  # raises here, where Typer handles it, if the reader has gone


def name_to_keep(name: str) -> str:
    """Returns a name from the command line as it is stored; prints a remark if it had to be cut.

    Raises `ConfigError` for a name that cannot be shown.
    """
    kept = cut_name(name)
    if reason := why_no_name(kept):
        raise ConfigError("name", kept, reason)
    if len(name.strip()) > MAX_NAME:
        remark(f"--name {NAME_CUT}")
    return kept


def remark(message: str) -> None:
    """Prints one line on standard error."""
    line = harmless(" ".join(message.split()))
    if len(line) > MOST_SAID:
        line = f"{line[: MOST_SAID - SAID_OF_THE_END]} ... {line[-SAID_OF_THE_END:]}"
    print("vitprof:", line, file=sys.stderr)  # noqa: T201


def complain(message: str, status: int) -> NoReturn:
    """Prints one line on standard error and ends the program with this exit status."""
    remark(message)
    raise SystemExit(status)
