"""`run`: runs one job, with a progress bar; `headroom`: how much faster it would be with free data."""

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.analysis.verdict.answer import answer_of
from vitprof.analysis.verdict.headroom import Headroom, headroom_sentence
from vitprof.cli.common import options, results, terminal
from vitprof.cli.common.fitted import Fitted, find_fitting
from vitprof.cli.common.progress import PROGRESS_EVERY_S, progress, run_progress, trial_progress
from vitprof.config import GROUPS, RunConfig, fitting
from vitprof.config.bounds import ANCHOR_REPEATS
from vitprof.config.device_rate import rate_if_valid
from vitprof.config.resolve import resolve
from vitprof.errors import JobError, StoreAwayError
from vitprof.experiments.headroom_runs import (
    REPEATS,
    anchor_configs,
    find_headroom,
    measure_headroom,
)
from vitprof.experiments.trials import job_manager
from vitprof.export import tables, write_text
from vitprof.program import program
from vitprof.recording.shared_machine import as_shown
from vitprof.store import StoredRun

HEADROOM_HELP = (
    "measure afterwards how much faster it would be with free data: four more jobs, twice each"
)


@options.takes(
    options.CONTEXT,
    *(options.option(name, panel) for panel, names in GROUPS.items() for name in names),
    options.parameter("as_json", bool, False, terminal.JSON_HELP, "Output", flag="--json"),
    options.parameter("csv", Path | None, None, "write the run's summary to this file", "Output"),
    options.parameter("headroom", bool, False, HEADROOM_HELP, "Measuring", flag="--headroom"),
    options.parameter("anyway", bool, False, options.ANYWAY_HELP, "Run"),
)
def run(
    ctx: typer.Context,
    *,
    as_json: bool,
    csv: Path | None,
    headroom: bool,
    anyway: bool,
    **settings: Any,
) -> None:
    """Run one job and show what it measured. Without a budget: one epoch.

    Images of your own get a model and a batch that fit them, where you name none.
    """
    settings["name"] = terminal.name_to_keep(settings["name"])
    config = RunConfig(**settings)
    named = [name for name in fitting.SETTINGS if terminal.is_given(ctx, name)]
    fitted = find_fitting(settings, named=named)
    config = dataclasses.replace(config, **fitted.settings)
    terminal.check_output(csv, "csv")
    terminal.check_rate()
    if headroom:
        # raises before the run if its headroom cannot be measured
        anchor_configs(config)
    finished = _run_job(config, fitted, anyway=anyway)
    extra: dict[str, Any] = {"headroom": None}
    stopped = False
    if not as_json:
        results.show_run(finished)
    if headroom and finished.status == "done":
        extra["headroom"], stopped = measure_and_show(
            finished, repeats=REPEATS, quiet=as_json, anyway=anyway
        )
    if as_json:
        answer = None
        if finished.verdict is not None:
            answer = answer_of(finished.verdict, summary=finished.summary, rate=rate_if_valid())
        terminal.print_json(tables.run_object(finished, answer=answer) | extra)
    terminal.show(*as_shown(finished.notices), console=terminal.err)
    if csv is not None:
        write_text(csv, tables.summary_csv([finished]))
    if finished.status == "failed":
        terminal.complain(f"run {finished.id} failed: {finished.error}", terminal.EXIT_FAILED)
    if finished.status == "stopped":
        terminal.complain(
            f"run {finished.id} was stopped; what was measured until then is kept",
            terminal.EXIT_STOPPED,
        )
    if stopped:
        terminal.complain("interrupted", terminal.EXIT_STOPPED)


def _run_job(config: RunConfig, fitted: Fitted, *, anyway: bool) -> StoredRun:
    # before the store is touched, so that a bad value leaves no trace
    options.check_budget(config)
    resolve(config)
    fitted.show()
    with terminal.open_store() as store, job_manager(store, anyway=anyway, warm=False) as manager:
        run_id = manager.submit(config)
        try:
            with progress() as show:
                show_run = run_progress(show)
                while not manager.wait(run_id, PROGRESS_EVERY_S):
                    # the job goes on meanwhile
                    with contextlib.suppress(StoreAwayError):
                        show_run(store.run(run_id))
        except KeyboardInterrupt:
            manager.stop(run_id)
            manager.wait(run_id)
        if manager.why_away(run_id):
            manager.shutdown()
            outcome = manager.unstored.get(run_id)
            if outcome:
                raise JobError(f"run {run_id} has ended, but {outcome}")
        return store.run(run_id)


REPEATS_HELP = "how many times each anchor is run; 0 only shows what was measured before"


def headroom(
    context: typer.Context,
    run: Annotated[int, terminal.run_id("id of a run that trained, as `runs` lists it")],
    as_json: terminal.AsJson = False,
    repeats: Annotated[int, terminal.number("repeats", ANCHOR_REPEATS, REPEATS_HELP)] = REPEATS,
    anyway: options.Anyway = False,
) -> None:
    """Measure how much faster a run's job would be if its data were free: four anchors, run alternately.

    The exit status is 1 if the result is not known.
    """
    if not repeats:
        terminal.refuse_given(context, ["anyway"], "nothing is run with --repeats 0; leave it out")
    with terminal.open_store() as store:
        profiled = store.run(run)
    result, stopped = measure_and_show(profiled, repeats=repeats, quiet=as_json, anyway=anyway)
    if as_json:
        terminal.print_json({"run_id": run, "headroom": result})
    if stopped:
        raise typer.Exit(terminal.EXIT_STOPPED)
    if result is not None and math.isnan(result["speed_up"]):
        raise typer.Exit(terminal.EXIT_FAILED)


def measure_and_show(
    run: StoredRun, *, repeats: int, quiet: bool, anyway: bool
) -> tuple[dict[str, Any] | None, bool]:
    """Measures the headroom of `run`, or reads it where `repeats` is 0, and shows it unless `quiet`.

    Returns the object for `--json`, None if nothing was measured, and whether Ctrl-C, SIGTERM or SIGHUP
    stopped it; what was measured until then is shown all the same.
    """
    with terminal.open_store() as store, terminal.stop_requested() as stop:
        if repeats:
            with job_manager(store, anyway=anyway) as manager, progress() as show:
                report = trial_progress(store, show)
                result = measure_headroom(manager, run, repeats=repeats, progress=report, stop=stop)
        else:
            result = find_headroom(store, run)
        stopped = stop()
    if stopped and (result is None or not any(a.n_runs for a in result.anchors)):
        return None, True
    if not quiet:
        _show(result, run)
    if result is None:
        return None, stopped
    return vars(result) | {"sentence": headroom_sentence(result, run.config.batch_size)}, stopped


def _show(result: Headroom | None, run: StoredRun) -> None:
    if result is None:
        terminal.out.print(
            f"the headroom of run {run.id} is not measured; run: {program()} headroom {run.id}"
        )
        return
    batch = run.config.batch_size
    title = f"headroom of run {run.id}"
    if result.simulated:
        title += ", on a simulated device"
    terminal.show_table(tables.ANCHORS_HEADER, tables.anchors_in_words(result, batch), title)
    terminal.show(headroom_sentence(result, batch))
    terminal.show(*result.notes, console=terminal.err)
