"""`tournament`: runs many settings against each other."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer

from vitprof.analysis.tournament.recommend import break_even, recommend
from vitprof.cli.common import options as reading
from vitprof.cli.common import progress, terminal
from vitprof.cli.common.results import running_words, show_board
from vitprof.config import BUDGETS, RunConfig, bounds, tournament_spec
from vitprof.config.own_script import (
    OWN_SCRIPT,
    UNCHANGED,
    OwnScript,
    own_config,
    settings_of,
)
from vitprof.config.strategies import STRATEGIES
from vitprof.config.varied import OF_A_JOB, OF_A_SCRIPT, Value, read_varied
from vitprof.errors import ConfigError
from vitprof.experiments.tournament import planning, tournament_runner
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.experiments.trials import job_manager
from vitprof.export import tournament, write_text
from vitprof.jobs.trial_folder import isolation_of
from vitprof.names import masked_command
from vitprof.program import program
from vitprof.store import RunStore, tournaments

POLL_S = 0.2
TRIAL_STEPS = 100
"""Length of a trial of a user's own script in training steps, unless --steps is given."""
CLUSTER = {"on", "nodes", "slurm"}
ALL = {parameter.name for parameter in reading.TOURNAMENT[1:]}
"""All options of `tournament`."""
WITH_A_SCRIPT = {
    "command",
    "vary",
    "yes",
    "in_place",
    "anyway",
    "steps",
    "repeats",
    "until_decided",
    "early_stop",
    "time",
    "name",
    "csv",
    "as_json",
    "markdown",
    "telemetry_hz",
}
NOT_WITH_A_SCRIPT = ALL - WITH_A_SCRIPT
"""Options that cannot be given with a user's own script."""
WITH_RESUME = {
    "resume",
    "more_rounds",
    "take_over",
    "command",
    "yes",
    "anyway",
    "csv",
    "as_json",
    "markdown",
    *CLUSTER,
}
NOT_WITH_RESUME = ALL - WITH_RESUME
"""Options that cannot be given for a tournament that is resumed."""


@reading.takes(*reading.TOURNAMENT)
def run_tournament(ctx: typer.Context, **given: Any) -> None:
    """Run settings against each other in rounds, and show which one to use.

    Ctrl-C pauses; --resume ID continues, also after a restart of the machine. With a command after -- it runs your
    own script, unchanged, with other arguments for its train DataLoader: --vary workers=0,2,4 --steps 100 -- python
    train.py.
    """
    options = {p.name: given.pop(p.name) for p in reading.OPTIONS}
    resumed = options["resume"]
    terminal.check_output(options["csv"], "csv")
    for name in ("take_over", "more_rounds"):
        if options[name] not in (False, None) and resumed is None:
            raise ConfigError(name, options[name], "it goes with --resume ID")
    if options["show_list"]:
        _list(options["as_json"])
        return
    own = options["command"]
    if options["on"] and own:
        raise ConfigError(
            "on", options["on"], "a script of your own runs on this machine only; leave it out"
        )
    for name in ("nodes", "slurm"):
        if options[name] and not options["on"]:
            raise ConfigError(name, options[name], "it goes with --on")
    with terminal.open_store() as store:
        if resumed is not None:
            resumes = "a tournament that is resumed keeps its settings; leave it out"
            _refuse(NOT_WITH_RESUME, options | given, ctx, resumes)
            _check_same_command(
                tournaments.tournament(store, resumed).spec.script, options["command"] or []
            )
            if options["take_over"]:
                tournaments.release(store, resumed)
            if options["more_rounds"] is not None:
                tournaments.add_rounds(store, resumed, options["more_rounds"])
        else:
            wanted = _own_spec(options, given, ctx) if own else _spec(options, given)
            resumed = planning.create_tournament(
                store, wanted, terminal.name_to_keep(given["name"])
            )
        run_stored(store, options, resumed)


# what was asked for


def _refuse(names: set[str], given: dict[str, Any], ctx: typer.Context, reason: str) -> None:
    """Raises `ConfigError` if one of these options was given, even with its default value."""
    for name, value in given.items():
        source = ctx.get_parameter_source(name)
        if name in names and source is not None and source.name != "DEFAULT":
            shown = " ".join(value) if isinstance(value, list) else value
            raise ConfigError(name, shown, reason)


def _strategies(text: str, base: RunConfig) -> tuple[str, ...]:
    if not text:
        some = f"give some, separated by commas, or all: {', '.join(STRATEGIES)}"
        raise ConfigError("strategies", "", f"{some}; or your own script after --")
    if text == "all":
        return reading.strategies_that_run(base)
    return reading.texts("strategies", text)


def _varied(options: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    """Returns the settings that are varied for jobs of vitprof's own, with their values.

    `--batch-sizes 64,512` is short for `--vary batch_size=64,512`, and `--workers` likewise.
    """
    varied: dict[str, tuple[Value, ...]] = {}
    for text in options["vary"] or ():
        name, values = read_varied(text, OF_A_JOB)
        if name in varied:
            raise ConfigError("vary", text, f"give {name} once, with all its values")
        varied[name] = values
    for option, name in (("batch_sizes", "batch_size"), ("workers", "workers")):
        text = options[option]
        if not text:
            continue
        if name in varied:
            raise ConfigError(option, text, f"--vary {name}= is given too; leave one out")
        varied[name] = reading.numbers(option, text, bounds.TOURNAMENT_BOUNDS[option])
    return varied


def _spec(options: dict[str, Any], given: dict[str, Any]) -> tournament_spec.TournamentSpec:
    config = {**given, "name": ""}
    if all(given[budget] is None for budget in BUDGETS):
        config["seconds"] = reading.TRIAL_S
    base = RunConfig(**config)
    varied = _varied(options)
    spec: dict[str, Any] = {
        "batch_sizes": varied.pop("batch_size", (RunConfig.batch_size,)),
        "workers": varied.pop("workers", None),
        "vary": tuple(varied.items()),
    }
    return tournament_spec.TournamentSpec(
        base=base,
        strategies=_strategies(options["strategies"], base),
        page_caches=reading.texts("page_caches", options["page_caches"] or "as-is"),
        baseline=options["baseline"],
        **spec,
        **_rounds(options),
    )


def _rounds(options: dict[str, Any]) -> dict[str, Any]:
    # under the option's name: --seconds is another option
    if options["time"] is not None:
        bounds.TOURNAMENT_BOUNDS["seconds"].check("time", options["time"])
    return {
        "repeats": options["repeats"],
        "early_stop": options["early_stop"],
        "until_decided": options["until_decided"],
        "seconds": options["time"],
    }


def _own_spec(
    options: dict[str, Any], given: dict[str, Any], ctx: typer.Context
) -> tournament_spec.TournamentSpec:
    if not options["vary"]:
        todo = "say what of the script's DataLoader is tried: --vary workers=0,2,4"
        raise ConfigError("vary", "", todo)
    reason = "it does not go with a script of your own; leave it out"
    _refuse(NOT_WITH_A_SCRIPT, options | given, ctx, reason)
    isolation = ""
    layered: tuple[str, ...] = ()
    if not options["in_place"]:
        isolation, layered = isolation_of(os.getcwd(), options["command"])
    steps = TRIAL_STEPS if given["steps"] is None else given["steps"]
    base = own_config("", steps=steps, telemetry_hz=given["telemetry_hz"])
    command = planning.keep_command(options["command"])
    varied = tuple(read_varied(text, OF_A_SCRIPT) for text in options["vary"])
    script = OwnScript(command, os.getcwd(), varied, isolation=isolation, layered=layered)
    return tournament_spec.TournamentSpec(
        base, (OWN_SCRIPT,), (1,), baseline=UNCHANGED, script=script, **_rounds(options)
    )


def _check_same_command(script: OwnScript | None, command: list[str]) -> None:
    if command and (script is None or planning.keep_command(command) != script.command):
        raise ConfigError(
            "command", " ".join(masked_command(command)), "it is not that of the resumed tournament"
        )
    if script is not None:
        planning.command_of(script)


# running it


def run_stored(
    store: RunStore,
    options: Mapping[str, Any],
    tournament_id: int,
    show: Callable[..., None] = show_board,
) -> None:
    """Runs what remains of a tournament, and shows it by `show`; ends the program with a status where it
    failed.
    """
    view = TournamentView(store, tournament_id)
    error = ""
    stopped = False
    _announce(store, tournament_id, options["yes"])
    # after its first trial in an earlier run, without agreement
    _ask_to_repeat(store, tournament_id, options["yes"])
    if tournaments.tournament(store, tournament_id).status != "done":
        work = _on_cluster if options.get("on") else _work
        error, stopped = work(store, view, tournament_id, options)
    if not error and not stopped:
        # a script's first trial has ended: the others run once the user agrees
        agreed = _ask_to_repeat(store, tournament_id, options["yes"])
        if agreed:
            error, stopped = _work(store, view, tournament_id, options)
    now = view.look()
    board = view.board(now)
    pays = break_even(board)
    best = recommend(board)
    if options["as_json"]:
        terminal.print_json(tournament.tournament_object(now.tournament, board, pays, best))
    elif options["markdown"]:
        table = tournament.tournament_markdown(now.tournament, board, best)
        terminal.out.print(table, soft_wrap=True, end="")
    else:
        show(now, board, pays, best)
    # after the result is shown, so that a full disk does not hide it
    if options["csv"] is not None:
        write_text(options["csv"], tournament.tournament_csv(now.tournament, board, pays, best))
    again = f"{program()} tournament --resume {tournament_id}"
    if options.get("on"):
        again += f" --on {options['on']}"
    this = f"tournament {tournament_id}"
    if stopped and now.tournament.status != "done":
        terminal.complain(f"{this} is paused; continue with {again}", terminal.EXIT_STOPPED)
    if error:
        terminal.complain(f"{this} stopped: {error}; continue with {again}", terminal.EXIT_FAILED)
    if board.best is None:
        raise typer.Exit(terminal.EXIT_FAILED)


def _work(
    store: RunStore, view: TournamentView, tournament_id: int, options: Mapping[str, Any]
) -> tuple[str, bool]:
    """Runs the rest. Returns the error that ended it ("" if none), and whether a person stopped it."""
    now = tournaments.tournament(store, tournament_id)
    with (
        job_manager(store, anyway=options["anyway"], warm=now.spec.script is None) as manager,
        terminal.stop_asked() as stop,
        progress.progress() as show,
    ):
        runner = tournament_runner.TournamentRunner(manager, tournament_id)
        show_waiting = progress.run_progress(show)
        try:
            while not runner.join(POLL_S) and not stop():
                queued = store.runs(["queued"], limit=1, group_key=now.group_key)
                if queued:
                    show_waiting(queued[0])
                elif progress.shows_progress():
                    # its words take a while to compute
                    state = view.look()
                    show(running_words(state, view.board(state)), state.progress.fraction)
        finally:
            if stop():
                runner.shutdown(f"paused by {stop.by}")
            else:
                runner.shutdown()
        return runner.error, stop()


def _on_cluster(
    store: RunStore, view: TournamentView, tournament_id: int, options: Mapping[str, Any]
) -> tuple[str, bool]:
    """Does the same on the nodes of a cluster."""
    from vitprof.experiments.cluster import controller, engines

    nodes = options["nodes"]
    if nodes is not None and nodes < 1:
        raise ConfigError("nodes", nodes, "give at least 1")
    sbatch: dict[str, str] = {}
    for given in options["slurm"] or ():
        name, separator, value = given.partition("=")
        if not (name and separator):
            raise ConfigError("slurm", given, "give NAME=VALUE, such as partition=gpu")
        sbatch[name] = value
    opened = engines.open_engine(options["on"], nodes or sys.maxsize, sbatch)
    with contextlib.closing(opened) as engine:
        cluster = controller.ClusterTournament(store, tournament_id, engine)
        with terminal.stop_asked() as stop, progress.progress() as show:

            def report() -> None:
                if progress.shows_progress():
                    state = view.look()
                    show(running_words(state, view.board(state)), state.progress.fraction)

            return cluster.run(stop, report), stop()


def _announce(store: RunStore, tournament_id: int, yes: bool) -> None:
    """Says what the first trial of a script will run, and asks where it may overwrite the user's files."""
    spec = tournaments.tournament(store, tournament_id).spec
    script = spec.script
    if script is None or script.loader is not None:
        return
    words = planning.begin_words(script, spec.base.steps)
    terminal.show(f"{words[0].upper()}{words[1:]}.", console=terminal.err)
    if not script.isolation and not yes:
        _confirm("Run it?", tournament_id, "to run the script")


def _ask_to_repeat(store: RunStore, tournament_id: int, yes: bool) -> bool:
    """Shows what the first trial of a script wrote and asks whether to repeat it, unless that is agreed
    or `yes`.

    Returns whether it was agreed just now. Ends the program with status 2 if it is not, or nobody can be
    asked.
    """
    script = tournaments.tournament(store, tournament_id).spec.script
    if script is None or script.loader is None or script.agreed:
        return False
    words = planning.written_words(script)
    # without the names of the first files: all of them follow
    sentence, colon, _ = words.partition(": ")
    sentence = f"{sentence[0].upper()}{sentence[1:]}{':' if colon else '.'}"
    remarks = dict.fromkeys(remark for setting in settings_of(script) for remark in setting.remarks)
    paths = [f"  {path}" for path in script.writes]
    terminal.show(*remarks, sentence, *paths, console=terminal.err)
    if script.lasting and not yes:
        terminal.show(
            "Every trial runs the script again and writes these files again. To write elsewhere in each trial, use the "
            "number of the trial, which the script finds in the environment variable VITPROF_TRIAL.",
            console=terminal.err,
        )
        _confirm("Repeat it?", tournament_id, "to repeat the script")
    planning.agree(store, tournament_id)
    return True


def _confirm(question: str, tournament_id: int, purpose: str) -> None:
    """Ends the program with status 2 unless the user, at a terminal, says yes."""
    with contextlib.suppress(typer.Abort):  # Ctrl-C or end of input
        if sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True):
            return
    again = f"{planning.resume_command(tournament_id)} --yes"
    terminal.complain(
        f"tournament {tournament_id} is paused; {purpose}: {again}", terminal.EXIT_BAD_VALUE
    )


def _list(as_json: bool) -> None:
    with terminal.open_store() as store:
        listed = tournaments.list_tournaments(store)
    if as_json:
        terminal.print_json({"tournaments": [tournament.listed_object(t) for t in listed]})
    elif not listed:
        terminal.out.print(
            f"no tournaments yet; start one with {program()} tournament --strategies memory,workers"
        )
    else:
        cells = []
        for each in listed:
            name = each.name
            if each.spec.base.simulated:
                name += " (simulated)"
            cells.append((str(each.id), name, each.status, each.created_utc))
        terminal.show_table(("tournament", "name", "status", "made"), cells)
