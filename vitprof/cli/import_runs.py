"""`import`: imports the runs of a file that `bundle` wrote on another machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from vitprof.cli.common.terminal import AsJson, out, print_json
from vitprof.store import RunStore


def import_runs(
    file: Annotated[Path, typer.Argument(help="a .vitprof file")],
    as_json: AsJson = False,
) -> None:
    """Import the runs of a file that `bundle`, or Export on the History page, wrote on another machine."""
    from vitprof.export.bundle import import_bundle

    with contextlib.closing(RunStore()) as store:
        came = import_bundle(store, file)
    if as_json:
        runs = [{"run_id": r.id, "name": r.name, "already_here": r.already, "helper": r.helper} for r in came.runs]
        print_json({"runs": runs})
    else:
        out.print(came.sentence)
