"""`runs` lists the runs in the store, searched, filtered and paged as on the History page; `delete` takes
one out, and `restore` brings it back.
"""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from vitprof import errors, formats
from vitprof.analysis.verdict.answer import Proof
from vitprof.cli.common import results, terminal
from vitprof.config.bounds import LIST_PAGE
from vitprof.experiments import answers
from vitprof.export.tables import run_object
from vitprof.program import program
from vitprof.recording.shared_machine import as_shown
from vitprof.store import SORTS, RunQuery, RunRow, RunStore, StoredRun

DEFAULT_LIMIT = 50
"""Runs in a table without --limit. As JSON all runs are printed."""
LIMIT_HELP = f"list at most this many; if not given, {DEFAULT_LIMIT} in a table and all with --json"
HELPERS_HELP = "include anchors of headroom, and trials of tournaments"
SORT_HELP = f"order: {', '.join(SORTS)}; the largest first, or the smallest with --ascending"


def _many(help_text: str) -> Any:
    return typer.Option(help=f"{help_text}; may be given more than once", show_default=False)


def runs(
    context: typer.Context,
    run: Annotated[
        int | None, terminal.run_id("show this run: its figures, its verdict and what to try")
    ] = None,
    text: Annotated[
        str, typer.Option(help="words to find in name, note, tags, strategy, data set or device")
    ] = "",
    tag: Annotated[list[str] | None, _many("runs with this tag")] = None,
    strategy: Annotated[list[str] | None, _many("runs of this strategy")] = None,
    dataset: Annotated[list[str] | None, _many("runs on this data set")] = None,
    device: Annotated[list[str] | None, _many("runs on this device, as requested")] = None,
    verdict: Annotated[
        list[str] | None, _many("runs with this verdict, such as input-bound")
    ] = None,
    status: Annotated[
        list[str] | None, _many("runs with this status, such as done or failed")
    ] = None,
    user: Annotated[list[str] | None, _many("runs that this user made")] = None,
    host: Annotated[list[str] | None, _many("runs made on this machine")] = None,
    project: Annotated[
        list[str] | None, _many("runs of this project, as VITPROF_PROJECT named it")
    ] = None,
    helpers: Annotated[bool, typer.Option("--helpers", help=HELPERS_HELP)] = False,
    sort: Annotated[str, typer.Option(help=SORT_HELP)] = "id",
    ascending: Annotated[bool, typer.Option("--ascending", help="the smallest first")] = False,
    limit: Annotated[
        int | None, terminal.number("limit", LIST_PAGE, LIMIT_HELP, show_default=False)
    ] = None,
    page: Annotated[int, terminal.number("page", LIST_PAGE, "list this page of --limit runs")] = 1,
    as_json: terminal.AsJson = False,
) -> None:
    """List the runs in the store, newest first, or show one of them."""
    if run is not None:
        of_a_list = [name for name in context.params if name not in ("run", "as_json")]
        terminal.refuse_given(context, of_a_list, f"it is for the list; run {run} alone is shown")
        terminal.check_rate()
    filters = {
        "status": status,
        "strategy": strategy,
        "dataset": dataset,
        "device": device,
        "verdict": verdict,
        "tag": tag,
        "user": user,
        "host": host,
        "project": project,
    }
    wanted = {name: values or () for name, values in filters.items()}
    query = RunQuery(
        text=text, filters=wanted, helpers=helpers, sort=sort, descending=not ascending
    )
    with terminal.open_store(settle=True) as store:
        if run is not None:
            _show(store, store.run(run), as_json)
            return
        total = store.count_runs(query)
        if limit is not None:
            most = limit
        elif as_json:
            most = max(total, 1)
        else:
            most = DEFAULT_LIMIT
        rows = store.list_runs(query, limit=most, offset=(page - 1) * most)
        if as_json:
            terminal.print_json({"runs": list(_objects(store, rows))})
            return
    if rows:
        _show_table(rows)
        if len(rows) < total:
            first = (page - 1) * most + 1
            last = first + len(rows) - 1
            terminal.out.print(
                f"{first:,} to {last:,} of {total:,} runs; --limit and --page show others"
            )
    elif total:
        terminal.out.print(f"there is no page {page}: {total:,} runs, {most} a page")
    else:
        terminal.out.print(
            f"no runs; {program()} run --strategy memory --steps 50 makes one, --helpers shows more"
        )


def _show(store: RunStore, run: StoredRun, as_json: bool) -> None:
    if as_json:
        answer = answers.answer_of_run(store, run)
        terminal.print_json(run_object(run, store.tags(run.id), answer))
        return
    if run.summary is None or not run.summary.n_steps:
        terminal.out.print(f"run {run.id}: {run.name}: {run.status}")
    verdict = answers.verdict_now(store, run)
    found: tuple[Proof, ...] = ()
    if verdict is not None:
        found = answers.proofs_of(store, run, verdict)
    results.show_run(run, verdict, found)
    terminal.show(*as_shown(run.notices))
    if run.error:
        terminal.show(run.error)


def _show_table(rows: list[RunRow]) -> None:
    header = ["run", "name", "status", "verdict", "samples/s", "idle"]
    if terminal.is_wide():
        header += ["tags", "made"]
    # whose a run is, where they are not all of one user on one machine
    several_owners = len({(row.owner_user, row.owner_host) for row in rows}) > 1
    if several_owners:
        header.append("by")
    cells = []
    for row in rows:
        name = row.name
        if row.simulated and "simulated" not in name:
            name += " (simulated)"
        speed = ""
        idle = ""
        # of a run that has measured nothing "n/a" would be of no use
        if row.samples_per_s is not None or row.idle_frac is not None:
            speed = formats.number(row.samples_per_s)
            idle = formats.percent(row.idle_frac)
        of_row = {
            "run": str(row.id),
            "name": name,
            "status": row.status,
            "verdict": row.verdict_kind,
            "samples/s": speed,
            "idle": idle,
            "tags": ", ".join(row.tags),
            "made": row.created_utc,
            "by": f"{row.owner_user}@{row.owner_host}",
        }
        cells.append([of_row[column] for column in header])
    terminal.show_table(header, cells)


def _objects(store: RunStore, rows: list[RunRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        with contextlib.suppress(errors.StoreError):
            yield run_object(store.run(row.id), row.tags)


def delete(run: Annotated[int, terminal.run_id("id, as `runs` lists it")]) -> None:
    """Delete a run with its steps and telemetry; restore brings it back for 30 days."""
    with terminal.open_store(settle=True) as store:
        store.delete(run)


def restore(run: Annotated[int, terminal.run_id("id of the deleted run")]) -> None:
    """Bring back a run that was deleted."""
    with terminal.open_store() as store:
        store.restore(run)
