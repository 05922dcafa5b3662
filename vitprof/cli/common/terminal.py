"""What every command shares: where it prints, what it writes to, how it reads a number, how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from vitprof.config.bounds import MAX_NAME, NAME_CUT, cut_name
from vitprof.errors import ConfigError
from vitprof.records import SCHEMA_VERSION

RUN = "RUN"
EXIT_FAILED, EXIT_BAD_VALUE, EXIT_STOPPED = 1, 2, 130
VERDICT_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
"""Of the word that says whether something can run here."""
PIPE_WIDTH = 400
"""Columns of a table that goes to a file or another program: one line for each run, whatever its name."""

# Names of runs and paths are text, whatever brackets and colons they hold.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)

JSON_HELP = "print one JSON object and nothing else"
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


def reader(name: str, kind: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """Returns a parser of numbers whose error names the value: Typer's does not in every version."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(name, text, allowed) from None

    return read


def run_id(help_text: str) -> Any:
    """Returns an argument that takes the id of a run."""
    return typer.Argument(
        metavar=RUN, help=help_text, parser=reader(RUN, int, "give a whole number, as `runs` lists them")
    )


def check_output(path: Path | None, option: str = "output") -> None:
    """Says that the file of an option cannot be written before the work is done, not after. Raises `ConfigError`."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(option, str(path), "it is a directory; give a file")
    if path.exists() and not path.is_file():  # /dev/null, /dev/stdout: writing renames a new file to the name
        raise ConfigError(option, str(path), "it is a device or a pipe; give a file")
    if not path.parent.is_dir():
        raise ConfigError(option, str(path), f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(option, str(path), f"{path.parent} cannot be written to")


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object, see `json_text`."""
    print_text(json_text(value))


def json_text(value: dict[str, Any]) -> str:
    """Returns one JSON object, and with it the version of what its names mean."""
    return json.dumps({"schema_version": SCHEMA_VERSION} | value, indent=2, allow_nan=False) + "\n"


def print_text(text: str) -> None:
    """Prints text as it is, for another program or a file."""
    sys.stdout.write(text)
    sys.stdout.flush()  # a reader that has gone shows here, where Typer deals with it


def name_to_keep(name: str) -> str:
    """Returns a name from the command line as it is kept, and says so where that is shorter."""
    if len(name.strip()) > MAX_NAME:
        remark(f"--name {NAME_CUT}")
    return cut_name(name)


def remark(message: str) -> None:
    """Prints one line on standard error."""
    print("vitprof:", *message.split(), file=sys.stderr)  # noqa: T201


def complain(message: str, status: int) -> NoReturn:
    """Prints one line on standard error and ends the program with this exit status."""
    remark(message)
    raise SystemExit(status)
