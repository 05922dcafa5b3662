"""`bundle`: writes runs to one file that another machine can import."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common.terminal import check_output, out, run_id
from vitprof.program import program
from vitprof.store import RunStore


def bundle(
    run_ids: Annotated[list[int], run_id("ids, as `runs` lists them")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as runs.vitprof")],
) -> None:
    """Write runs, with everything recorded about them, to one file that another machine can import."""
    from vitprof.export.bundle import write_bundle

    check_output(output)
    with contextlib.closing(RunStore()) as store:
        write_bundle(store, run_ids, output)
    out.print(f"{output}: {formats.size(output.stat().st_size)}; import it with {program()} import {output}")
