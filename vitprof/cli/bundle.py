"""`bundle` and `import`: runs as one file, which another machine can import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.program import program


def bundle(
    run_ids: Annotated[list[int], terminal.run_id("ids, as `runs` lists them")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as runs.vitprof")],
) -> None:
    """Write runs, with everything recorded about them, to one file that another machine can import."""
    from vitprof.export.bundle import write_bundle

    terminal.check_output(output)
    with terminal.open_store() as store:
        write_bundle(store, run_ids, output)
    size = formats.size(output.stat().st_size)
    terminal.out.print(f"{output}: {size}; import it with {program()} import {output}")


def import_runs(
    file: Annotated[Path, typer.Argument(help="a .vitprof file")], as_json: terminal.AsJson = False
) -> None:
    """Import the runs of a file that `bundle`, or Export on the History page, wrote on another machine."""
    from vitprof.export.bundle import import_bundle

    with terminal.open_store() as store:
        came = import_bundle(store, file)
    if as_json:
        terminal.print_json({"runs": came.runs})
    else:
        terminal.out.print(came.sentence)
