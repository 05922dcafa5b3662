"""`headroom`, and `run --headroom`: measures how much faster a run's job would be if its data were free."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer
from rich.table import Table

from vitprof import formats
from vitprof.analysis.verdict.headroom import ADDED_STAGE, ANCHOR_WORDS, Headroom, headroom_sentence, to_dict
from vitprof.cli.common import terminal
from vitprof.cli.common.options import Anyway
from vitprof.cli.common.progress import progress
from vitprof.cli.common.terminal import EXIT_FAILED, EXIT_STOPPED, AsJson, number, print_json, run_id, stop_asked
from vitprof.config.bounds import ANCHOR_REPEATS
from vitprof.experiments.headroom import find_headroom, measure_headroom
from vitprof.experiments.trials import Progress, job_manager
from vitprof.program import program
from vitprof.store import RunStore, StoredRun


def headroom(
    run: Annotated[int, run_id("id of a run that trained, as `runs` lists it")],
    as_json: AsJson = False,
    repeats: Annotated[
        int,
        number("repeats", ANCHOR_REPEATS, "how many times each anchor is run; 0 only shows what was measured before"),
    ] = 2,
    anyway: Anyway = False,
) -> None:
    """Measure how much faster a run's job would be if its data were free: four anchors, run in turns.

    The exit status is 1 if the result is not known.
    """
    with contextlib.closing(RunStore()) as store:
        profiled = store.run(run)
    result, stopped = measure_and_tell(profiled, repeats=repeats, quiet=as_json, anyway=anyway)
    if as_json:
        print_json({"run_id": run, "headroom": result})
    if stopped:
        raise typer.Exit(EXIT_STOPPED)
    if result is not None and result["speed_up"] is None:
        raise typer.Exit(EXIT_FAILED)


def measure_and_tell(
    run: StoredRun, *, repeats: int = 2, quiet: bool, anyway: bool
) -> tuple[dict[str, Any] | None, bool]:
    """Measures the headroom of `run`, or reads it where `repeats` is 0, and shows it unless `quiet`.

    `repeats`: how many times each anchor is run. `anyway`: whether to begin also while other programs' jobs run.

    Returns the object for `--json`, None if nothing was measured, and whether Ctrl-C, SIGTERM or SIGHUP stopped it;
    what was measured until then is shown all the same.
    """
    with contextlib.closing(RunStore()) as store, stop_asked() as stop:

        def report(p: Progress) -> None:
            show(store.run(p.run_id or 0), f"{p.words}, {p.done + 1} of {p.total}: ")

        if repeats:
            with job_manager(store, anyway=anyway) as manager, progress() as show:
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
    return to_dict(result) | {"sentence": headroom_sentence(result, run.config.batch_size)}, stopped


def _show(result: Headroom | None, run: StoredRun) -> None:
    if result is None:
        terminal.out.print(f"the headroom of run {run.id} is not measured; run: {program()} headroom {run.id}")
        return
    batch = run.config.batch_size
    title = f"headroom of run {run.id}" + (", on a simulated device" if result.simulated else "")
    table = Table("", "a step takes", "95%", "samples/s", "adds", "", title=title, title_justify="left")
    added = {p.name.rpartition(" and ")[2]: p for p in result.stages}
    for a in result.anchors:
        stage = added.get(ADDED_STAGE.get(a.role, ""))
        adds = ""
        if stage is not None and stage.distinguishable:
            adds = f"{stage.name} {formats.seconds(stage.s_per_sample * batch)}"
        elif stage is not None:
            most = f" (at most {formats.seconds(stage.high * batch)})" if stage.high > 0 else ""
            adds = f"{stage.name}: not distinguishable from nothing{most}"
        low, high = (formats.seconds(v * batch) for v in (a.low, a.high))
        table.add_row(
            a.role,
            formats.seconds(a.s_per_sample * batch),
            f"{low} to {high}, n = {a.n_steps} steps of {a.n_runs} {'run' if a.n_runs == 1 else 'runs'}",
            formats.number(1 / a.s_per_sample if a.n_runs else None),
            adds,
            ANCHOR_WORDS[a.role],
        )
    terminal.out.print(table)
    terminal.out.print(headroom_sentence(result, batch), soft_wrap=True)
    for note in result.notes:
        terminal.err.print(note, soft_wrap=True)
