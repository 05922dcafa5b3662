"""`bundle` and `import`: runs as one file between machines."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.terminal import AsJson, check_csv, out, print_json, run_id
from vitprof.errors import ConfigError
from vitprof.records import SCHEMA_VERSION
from vitprof.store import RunStore


def bundle(
    run_ids: Annotated[list[int], run_id("ids, as `runs` lists them")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as runs.vitprof")],
) -> None:
    """Write runs, with all that is known of them, to one file that another machine can import."""
    from vitprof.bundle import write_bundle

    try:
        check_csv(output)
    except ConfigError as error:
        raise ConfigError("output", error.value, error.allowed) from None
    with contextlib.closing(RunStore()) as store:
        write_bundle(store, run_ids, output)
    out.print(f"{output}: {formats.size(output.stat().st_size)}; python -m vitprof import {output} takes it in")


def import_runs(
    file: Annotated[Path, typer.Argument(help="a .vitprof file")],
    as_json: AsJson = False,
) -> None:
    """Take in the runs of a file that `bundle`, or Export on the History page, wrote on another machine."""
    from vitprof.bundle import import_bundle

    with contextlib.closing(RunStore()) as store:
        came = import_bundle(store, file)
    if as_json:
        runs = [{"run_id": r.id, "name": r.name, "already_here": r.already, "helper": r.helper} for r in came.runs]
        print_json({"schema_version": SCHEMA_VERSION, "runs": runs})
    else:
        out.print(came.sentence)
