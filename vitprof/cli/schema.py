"""`schema`: prints the JSON Schema of a command's JSON output."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from vitprof.cli.common.terminal import out, print_text
from vitprof.program import program


def schema(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="name of the schema; lists them if not given", show_default=False)
    ] = "",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what a command prints with --json."""
    from vitprof.cli.common.printed import PRINTED
    from vitprof.recording import codec

    if name in PRINTED:
        print_text(json.dumps(codec.schema(PRINTED[name][0], name), indent=2, ensure_ascii=False) + "\n")
    elif name:
        raise typer.BadParameter(f"there is no {name}; choose one of {', '.join(PRINTED)}", param_hint="NAME")
    else:
        table = Table("schema", "output of")
        for one, (_, command) in PRINTED.items():
            table.add_row(one, f"{program()} {command}")
        out.print(table)
