"""`export`: runs as a table, a report, a trace, or scalars for TensorBoard."""

from __future__ import annotations

import contextlib
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from vitprof.cli.common.terminal import check_output, run_id
from vitprof.errors import ConfigError
from vitprof.export import runs_json, steps_csv, steps_parquet, summary_csv, summary_parquet, write_bytes
from vitprof.names import harmless
from vitprof.store import RunStore, StoredRun


def _html(store: RunStore, found: list[StoredRun]) -> bytes:
    from vitprof.experiments.headroom import find_headroom
    from vitprof.export.report import html_report

    measured = {run.id: headroom for run in found if (headroom := find_headroom(store, run)) is not None}
    return html_report(store, found, headrooms=measured).encode()


def _trace(store: RunStore, found: list[StoredRun]) -> bytes:
    from vitprof.export.trace import trace_json  # plotly comes with it

    return trace_json(store, found).encode()


FORMATS: dict[str, Callable[[RunStore, list[StoredRun]], bytes]] = {
    "csv": lambda store, found: summary_csv(found).encode(),
    "steps-csv": lambda store, found: steps_csv(store, found).encode(),
    "parquet": lambda store, found: summary_parquet(found),
    "steps-parquet": steps_parquet,
    "json": lambda store, found: runs_json(store, found, steps=False).encode(),
    "steps-json": lambda store, found: runs_json(store, found).encode(),
    "html": _html,
    "trace": _trace,
    "tensorboard": lambda store, found: b"",  # no file but a directory
}
BINARY_FORMATS = ("parquet", "steps-parquet", "tensorboard")


def export(
    run_ids: Annotated[list[int], run_id("ids, as `runs` lists them")],
    kind: Annotated[str, typer.Option("--format", metavar="FORMAT", help=", ".join(FORMATS))] = "csv",
    output: Annotated[
        Path | None,
        typer.Option("--output", help="file to write; a new directory for tensorboard; text goes to stdout"),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="csv, parquet, json: each step instead of one row for each run")
    ] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="the same as --format csv --output FILE")] = None,
) -> None:
    """Write runs to a file: a table, JSON, a report, a trace for ui.perfetto.dev, scalars for TensorBoard."""
    if csv is not None:
        if output is not None or kind not in ("csv", "steps-csv"):
            raise ConfigError("csv", str(csv), "it names file and format; leave out --output and --format")
        output = csv
    kind = f"steps-{kind}" if steps and f"steps-{kind}" in FORMATS else kind
    if kind not in FORMATS:
        raise ConfigError("format", kind, f"choose one of {', '.join(FORMATS)}")
    if output is None and kind in BINARY_FORMATS:
        raise ConfigError("format", kind, "a terminal cannot show it; give --output and a file name")
    if kind != "tensorboard":
        check_output(output, "csv" if csv is not None else "output")
    with contextlib.closing(RunStore()) as store:
        found = [store.run(number) for number in run_ids]
        if kind == "tensorboard" and output is not None:
            from vitprof.export.tensorboard import write_tensorboard

            write_tensorboard(store, found, output)
            return
        data = FORMATS[kind](store, found)
    if output is None:
        sys.stdout.buffer.write(harmless(data.decode()).encode() if sys.stdout.isatty() else data)
        sys.stdout.flush()  # a reader that has gone shows here, where Typer deals with it
    else:
        write_bytes(output, gzip.compress(data, mtime=0) if kind == "trace" and output.suffix == ".gz" else data)
