"""`tournament`: runs many settings against each other, or searches for one strategy's best setting."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, cast

import typer
from rich.table import Table

from vitprof import formats
from vitprof.analysis.tournament import break_even, recommend
from vitprof.cli.common import terminal
from vitprof.cli.common.options import texts, whole
from vitprof.cli.common.progress import overall_progress, say_waiting
from vitprof.cli.common.results import running_words, show_board, show_tuning, tuning_object
from vitprof.cli.common.terminal import EXIT_FAILED, EXIT_STOPPED, check_output, complain, name_to_keep, print_json
from vitprof.cli.common.tournament_options import (
    OPTIONS,
    SIGNATURE,
    ask_to_repeat,
    is_to_be_agreed,
    no_other_settings,
    own_spec,
    spec,
)
from vitprof.config import BUDGETS, RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.tournament.tournament_runner import TournamentRunner
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.experiments.trials import Progress, job_manager
from vitprof.experiments.tuning import DEFAULT_S, tune
from vitprof.export import write_text
from vitprof.export.tournament import tournament_csv, tournament_markdown, tournament_object
from vitprof.program import program
from vitprof.store import RunStore
from vitprof.store.tournaments import add_rounds, list_tournaments, release
from vitprof.store.tournaments import tournament as stored

POLL_S = 0.2


def run_tournament(ctx: typer.Context, **given: Any) -> None:
    """Run settings against each other in rounds, and show which one to use.

    Ctrl-C pauses; --resume ID continues, also after a restart of the machine. --auto searches for the best workers,
    prefetch factor and batch size of one strategy. With a command after -- it runs your own script, unchanged, with
    other arguments for its train DataLoader: --vary workers=0,2,4 --steps 100 -- python train.py.
    """
    options = {p.name: given.pop(p.name) for p in OPTIONS}
    check_output(options["csv"], "csv")
    if options["take_over"] and options["resume"] is None:
        raise ConfigError("take_over", True, "it goes with --resume ID")
    if options["more_rounds"] is not None and options["resume"] is None:
        raise ConfigError("more_rounds", options["more_rounds"], "it goes with --resume ID")
    if options["show_list"]:
        _list(options["as_json"])
    elif options["auto"]:
        _tune(options, given)
    elif options["resume"] is not None:
        no_other_settings(options | given, ctx)
        if options["take_over"]:
            with contextlib.closing(RunStore()) as store:
                release(store, options["resume"])
        if options["more_rounds"] is not None:
            with contextlib.closing(RunStore()) as store:
                add_rounds(store, options["resume"], options["more_rounds"])
        _run(options, options["resume"])
    else:
        own = options["command"] or options["vary"]
        wanted = own_spec(options, given, ctx) if own else spec(options, given)
        with contextlib.closing(RunStore()) as store:
            tournament_id = create_tournament(store, wanted, name_to_keep(given["name"]))
        _run(options, tournament_id)


# Typer reads a command's options from its signature; this one is generated.
cast(Any, run_tournament).__signature__ = SIGNATURE


def _run(options: dict[str, Any], tournament_id: int) -> None:
    """Runs a tournament until it is done or stopped, and shows its results."""
    with contextlib.closing(RunStore()) as store:
        view = TournamentView(store, tournament_id)
        error, stopped = "", False
        if is_to_be_agreed(store, tournament_id):  # asked after its first trial in an earlier run, without agreement
            ask_to_repeat(store, tournament_id, options["yes"])
        if stored(store, tournament_id).status != "done":
            error, stopped = _work(store, view, tournament_id, anyway=options["anyway"])
        if not (error or stopped) and is_to_be_agreed(store, tournament_id):
            ask_to_repeat(store, tournament_id, options["yes"])
            error, stopped = _work(store, view, tournament_id, anyway=options["anyway"])
        now = view.look()
        board = view.board(now)
    pays, best = break_even(board), recommend(board)
    if options["as_json"]:
        print_json(tournament_object(now.tournament, board, pays, best))
    elif options["markdown"]:
        terminal.out.print(tournament_markdown(now.tournament, board, best), soft_wrap=True, end="")
    else:
        show_board(now, board, pays, best)
    again = f"continue with {program()} tournament --resume {tournament_id}"
    if options["csv"] is not None:  # after the result is shown, so that a full disk does not hide it
        _write_csv(options["csv"], tournament_csv(now.tournament, board, pays, best), tournament_id)
    if stopped and now.tournament.status != "done":
        complain(f"tournament {tournament_id} is paused; {again}", EXIT_STOPPED)
    if error:
        complain(f"tournament {tournament_id} stopped: {error}; {again}", EXIT_FAILED)
    if board.best is None:
        raise typer.Exit(EXIT_FAILED)


def _work(store: RunStore, view: TournamentView, tournament_id: int, *, anyway: bool) -> tuple[str, bool]:
    """Runs the rest of a tournament. Returns the error that ended it ("" if none), and whether a person stopped it."""

    now = stored(store, tournament_id)
    with (
        job_manager(store, anyway=anyway, warm=now.spec.script is None) as manager,
        terminal.stop_asked() as stop,
        overall_progress() as show,
    ):
        runner, say = TournamentRunner(manager, tournament_id), say_waiting()
        try:
            while not runner.join(POLL_S) and not stop():
                queued = store.runs(["queued"], limit=1, group_key=now.group_key)
                if show is not None:
                    state = view.look()
                    words = queued[0].message if queued else ""
                    words = words or running_words(state, view.board(state))
                    show(words, state.progress.fraction, state.progress.seconds_left)
                elif queued:
                    say(queued[0])
        finally:
            runner.shutdown(*([f"paused by {stop.by}"] if stop() else []))
        return runner.error, stop()


def _write_csv(path: Path, text: str, tournament_id: int) -> None:
    try:
        write_text(path, text)
    except VitprofError as problem:
        again = f"write it with {program()} tournament --resume {tournament_id} --csv FILE"
        complain(f"{one_line(problem)}; nothing is lost: {again}", EXIT_FAILED)


def _list(as_json: bool) -> None:
    with contextlib.closing(RunStore()) as store:
        tournaments = list_tournaments(store)
    if as_json:
        rows = [
            {"tournament_id": t.id, "name": t.name, "status": t.status, "created_utc": t.created_utc, "note": t.note}
            | {"spec": t.spec.to_dict(), "simulated": is_simulated(t.spec.base.device)}
            for t in tournaments
        ]
        print_json({"tournaments": rows})
        return
    if not tournaments:
        terminal.out.print(f"no tournaments yet; start one with {program()} tournament --strategies memory,workers")
        return
    table = Table("tournament", "name", "status", "made")
    for t in tournaments:
        simulated = " (simulated)" if is_simulated(t.spec.base.device) else ""
        table.add_row(str(t.id), t.name + simulated, t.status, t.created_utc)
    terminal.out.print(table)


def _tune(options: dict[str, Any], given: dict[str, Any]) -> None:
    """Searches for the best setting of one strategy."""

    chosen = texts("strategies", options["strategies"])
    if len(chosen) > 1:
        raise ConfigError("strategies", options["strategies"], "--auto tunes one strategy at a time; give one")
    for name in ("csv", "markdown", "resume", "baseline", "page_caches", "command", "vary", "yes"):
        if options[name]:
            value = " ".join(options[name]) if isinstance(options[name], list) else options[name]
            raise ConfigError(name, value, "it does not go with --auto; leave it out")
    for name in BUDGETS:
        if given[name] is not None:
            raise ConfigError(name, given[name], "--auto sets the length of each run; give --time for the whole search")
    sizes = whole("batch_sizes", options["batch_sizes"]) if options["batch_sizes"] else None
    workers = whole("workers", options["workers"]) if options["workers"] else None
    base = RunConfig(**(given | {"name": "", "strategy": chosen[0]} | ({"batch_size": sizes[0]} if sizes else {})))
    seconds = DEFAULT_S if options["time"] is None else options["time"]
    with (
        contextlib.closing(RunStore()) as store,
        job_manager(store, anyway=options["anyway"]) as manager,
        terminal.stop_asked() as stop,
        overall_progress() as show,
    ):

        def report(p: Progress) -> None:
            if show is not None:
                best = f"; best so far {formats.number(p.best_per_s, 'samples/s')}" if p.best_per_s > 0 else ""
                show(p.words + best, p.fraction, p.seconds_left)

        result = tune(manager, base, seconds, batch_sizes=sizes, workers=workers, progress=report, stop=stop)
    if options["as_json"]:
        print_json(tuning_object(result))
    else:
        show_tuning(result)
    if result.stopped:
        complain("stopped; this is the best so far", EXIT_STOPPED)
