"""`runs`, `export` and `delete`: what is in the run store."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vitprof import formats
from vitprof.accelerators import is_simulated
from vitprof.cli.terminal import AsJson, check_csv, out, print_json, run_id
from vitprof.export import run_object, steps_csv, summary_csv, write_text
from vitprof.records import SCHEMA_VERSION
from vitprof.store import RunStore


def runs(as_json: AsJson = False) -> None:
    """List the runs in the store, newest first."""
    from vitprof.jobs.recording import settle_interrupted

    with contextlib.closing(RunStore()) as store:
        settle_interrupted(store)
        found = store.runs()
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "runs": [run_object(r) for r in found]})
        return
    if not found:
        out.print("no runs yet: python -m vitprof run --strategy memory --steps 50 makes one")
        return
    table = Table("run", "name", "status", "samples/s", "data wait", "device idle", "made")
    for r in found:
        s = r.summary
        figures = (
            (formats.number(s.samples_per_s), formats.percent(s.data_wait_frac), formats.percent(s.device_idle_frac))
            if s
            else ("", "", "")
        )
        name = r.name + (" (simulated)" if is_simulated(r.config.device) and "simulated" not in r.name else "")
        table.add_row(str(r.id), name, r.status, *figures, r.created_utc)
    out.print(table)


def export(
    run_ids: Annotated[list[int], run_id("ids, as `runs` lists them")],
    csv: Annotated[Path, typer.Option("--csv", help="file to write")],
    steps: Annotated[bool, typer.Option("--steps", help="one row for each step instead of one for each run")] = False,
) -> None:
    """Write runs to a CSV file."""
    check_csv(csv)
    with contextlib.closing(RunStore()) as store:
        found = [store.run(number) for number in run_ids]
        write_text(csv, steps_csv(store, found) if steps else summary_csv(found))


def delete(run: Annotated[int, run_id("id, as `runs` lists it")]) -> None:
    """Delete a run with its steps and telemetry."""
    with contextlib.closing(RunStore()) as store:
        store.mark_interrupted()
        store.delete(run)
