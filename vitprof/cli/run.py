"""`run`: runs one job with a progress bar, and shows its figures as a table."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from vitprof.cli.common import terminal
from vitprof.cli.common.options import ANYWAY_HELP, parameter, run_signature
from vitprof.cli.common.progress import POLL_S, progress
from vitprof.cli.common.results import show_run
from vitprof.cli.common.terminal import (
    EXIT_FAILED,
    EXIT_STOPPED,
    JSON_HELP,
    check_output,
    complain,
    name_to_keep,
    print_json,
)
from vitprof.cli.headroom import measure_and_tell
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import JobError, StoreAwayError
from vitprof.export import run_object, summary_csv, write_text
from vitprof.store import RunStore, StoredRun

OUTPUT_PANEL = "Output"


def run(*, as_json: bool, csv: Path | None, headroom: bool, anyway: bool, **settings: Any) -> None:
    """Run one job and show what it measured. Without a budget: one epoch."""
    config = RunConfig(**settings | {"name": name_to_keep(settings["name"])})
    check_output(csv, "csv")
    if headroom:
        from vitprof.experiments.headroom import anchor_configs

        anchor_configs(config)  # raises before the run if its headroom cannot be measured
    finished = _run_job(config, anyway=anyway)
    extra: dict[str, Any] = {"headroom": None}
    stopped = False
    if not as_json:
        show_run(finished, terminal.out)
    if headroom and finished.status == "done":
        extra["headroom"], stopped = measure_and_tell(finished, quiet=as_json, anyway=anyway)
    if as_json:
        print_json(run_object(finished) | extra)
    for notice in finished.notices:
        terminal.err.print(notice, soft_wrap=True)
    if csv is not None:
        write_text(csv, summary_csv([finished]))
    if finished.status == "failed":
        complain(f"run {finished.id} failed: {finished.error}", EXIT_FAILED)
    if finished.status == "stopped":
        complain(f"run {finished.id} was stopped; what was measured until then is kept", EXIT_STOPPED)
    if stopped:
        complain("interrupted", EXIT_STOPPED)


# Typer reads a command's options from its signature; this one is generated.
cast(Any, run).__signature__ = run_signature(
    parameter(
        "as_json",
        Annotated[bool, typer.Option("--json", help=JSON_HELP, rich_help_panel=OUTPUT_PANEL)],
        False,
    ),
    parameter(
        "csv",
        Annotated[
            Path | None,
            typer.Option("--csv", help="write the run's summary to this file", rich_help_panel=OUTPUT_PANEL),
        ],
        None,
    ),
    parameter(
        "headroom",
        Annotated[
            bool,
            typer.Option(
                "--headroom",
                help="measure afterwards how much faster it would be with free data: four more jobs, twice each",
                rich_help_panel="Measuring",
            ),
        ],
        False,
    ),
    parameter("anyway", Annotated[bool, typer.Option("--anyway", help=ANYWAY_HELP, rich_help_panel="Run")], False),
)


def _run_job(config: RunConfig, *, anyway: bool) -> StoredRun:
    """Submits a job, shows its progress and waits for it.

    Ctrl-C, SIGTERM and SIGHUP stop the job; what was measured until then is kept. Raises `ConfigError`, and `JobError`
    if the store could not take the end of the run.
    """
    from vitprof.jobs.manager import JobManager

    resolve(config)  # before the store is touched, so that a bad value leaves no trace
    store = RunStore()
    manager = JobManager(store, anyway=anyway)
    try:
        run_id = manager.submit(config)
        try:
            with progress() as show:
                while not manager.wait(run_id, POLL_S):
                    with contextlib.suppress(StoreAwayError):  # the job goes on meanwhile
                        show(store.run(run_id))
        except KeyboardInterrupt:
            manager.stop(run_id)
            manager.wait(run_id)
        if manager.why_away(run_id):
            manager.shutdown()
            if outcome := manager.left.get(run_id):
                raise JobError(f"run {run_id} has ended, but {outcome}")
        return store.run(run_id)
    finally:
        manager.shutdown()
        store.close()
