"""The options of `tournament`, the `TournamentSpec` that they ask for, and the question before a script is repeated."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.cli.common import terminal
from vitprof.cli.common.options import ANYWAY_HELP, option, parameter, read_seconds, strategies_that_run, texts, whole
from vitprof.cli.common.terminal import EXIT_BAD_VALUE, JSON_HELP, complain, reader
from vitprof.config import BUDGETS, CHOICES, GROUPS, PARTS, RunConfig
from vitprof.config.bounds import MORE_ROUNDS, TOURNAMENT_BOUNDS
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, VARIED, OwnScript, own_config, read_varied, settings_of
from vitprof.config.strategies import STRATEGIES
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.tournament.planning import agree, resume_command, written_words
from vitprof.experiments.tuning import DEFAULT_S
from vitprof.store import RunStore
from vitprof.store.tournaments import tournament

DEFAULT_BATCH_SIZES = str(RunConfig.batch_size)
TRIAL_S = 5.0
"""Seconds of training in each trial if no budget is given."""
TRIAL_STEPS = 100
"""Length of a trial in training steps, unless --steps is given."""
GO_WITH_A_SCRIPT = (
    "command",
    "vary",
    "yes",
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
)
"""Options of `tournament` that can be given with a user's own script."""
TOURNAMENT_PANEL, OUTPUT_PANEL, WORK_PANEL = "Tournament", "Output", "Work"
OF_EACH_TRIAL = (*PARTS, "strategy", "batch_size", "workers", "page_cache", "replay")
"""Fields of `RunConfig` that are no options here, because each trial has its own."""
SHARED = {name: panel for panel, names in GROUPS.items() for name in names if name not in OF_EACH_TRIAL}
SHARED_HELP = {
    "epochs": "budget of each trial: epochs",
    "steps": "budget of each trial: training steps",
    "seconds": f"budget of each trial: seconds of training; {TRIAL_S:g} if no budget is given",
    "evaluate": "evaluate on the test set in each trial",
    "name": "name of the tournament",
}


def _own(
    name: str, kind: Any, default: Any, text: str, panel: str = TOURNAMENT_PANEL, *, flag: str = "", **more: Any
) -> inspect.Parameter:
    """Returns an option; its flag is its name unless another one is given."""
    flag = flag or "--" + name.replace("_", "-")
    return parameter(name, Annotated[kind, typer.Option(flag, help=text, rich_help_panel=panel, **more)], default)


def _switch(name: str, text: str, panel: str = WORK_PANEL, **more: Any) -> inspect.Parameter:
    return _own(name, bool, False, text, panel, **more)


def _whole(name: str, default: int | None, text: str) -> inspect.Parameter:
    kind = int if default is not None else int | None
    return _own(name, kind, default, text, parser=reader(name, int, "give a whole number"), metavar="INTEGER")


VARY_HELP = (
    "values to try for your own script's DataLoader, such as workers=0,2,4; repeat it for other names: "
    + ", ".join(VARIED)
)
COMMAND_HELP = "your own script, after --: python train.py"
CACHES_HELP = f"states of the page cache, separated by commas: {', '.join(CHOICES['page_cache'])}"
DECIDED_HELP = f"add up to {MORE_ROUNDS} rounds of the settings that can still be the fastest, until it is decided"
TIME_HELP = (
    "time limit for all runs together, such as 90, 90s, 10min or 2h: no run starts after it; if it is too short "
    "for all settings of your own script, the best third goes on after each round; with --auto: time for the "
    f"search (default {DEFAULT_S:g})"
)
_SECONDS: dict[str, Any] = {
    "parser": reader("time", read_seconds, "give seconds, or such as 90s, 10min or 2h"),
    "metavar": "TIME",
}
OPTIONS = (
    parameter("command", Annotated[list[str] | None, typer.Argument(help=COMMAND_HELP, metavar="[-- COMMAND...]")]),
    _own("vary", list[str] | None, None, VARY_HELP, metavar="NAME=VALUES"),
    _switch("yes", "repeat your own script without asking, whatever it writes"),
    _own("strategies", str, "", "strategies, separated by commas, or all: every one that can run here"),
    _own("batch_sizes", str, "", f"batch sizes, separated by commas; {RunConfig.batch_size} if not given"),
    _own("workers", str, "", "numbers of workers, separated by commas; each strategy's own if not given"),
    _own("page_caches", str, "", CACHES_HELP),
    _whole("repeats", 3, "rounds; every setting runs once in each"),
    _own("until_decided", bool, True, DECIDED_HELP, flag="--until-decided/--no-until-decided"),
    _whole("more_rounds", None, "with --resume: run this many more rounds of every setting"),
    _own("baseline", str, "", "key of the setting to compare with, such as memory/b64/w-/as-is"),
    _own(
        "early_stop",
        bool,
        True,
        "stop a setting early once it clearly cannot be the fastest",
        flag="--early-stop/--no-early-stop",
    ),
    _own("time", float | None, None, TIME_HELP, **_SECONDS),
    _switch("auto", "find workers, prefetch factor and batch size of one strategy"),
    _whole("resume", None, "continue a tournament; show it again if it is done"),
    _switch("take_over", "with --resume: take it over from a machine or container that is gone"),
    _switch("anyway", ANYWAY_HELP),
    _switch("show_list", "list the tournaments in the store", flag="--list"),
    _own("csv", Path | None, None, "write a row for each setting to this file", OUTPUT_PANEL),
    _switch("as_json", JSON_HELP, OUTPUT_PANEL, flag="--json"),
    _switch("markdown", "print the table of epoch times by batch size in Markdown", OUTPUT_PANEL),
)


def _shared(name: str, panel: str) -> inspect.Parameter:
    shared = option(name, panel)
    shared.annotation.__metadata__[0].help = SHARED_HELP.get(name, shared.annotation.__metadata__[0].help)
    return shared.replace(default=False) if name == "evaluate" else shared


CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
SIGNATURE = inspect.Signature([CONTEXT, *OPTIONS, *(_shared(name, panel) for name, panel in SHARED.items())])


def no_other_settings(given: dict[str, Any], ctx: typer.Context) -> None:
    """Raises `ConfigError` if a setting was given for a tournament that is resumed, even with its default value."""
    allowed = ("resume", "more_rounds", "take_over", "yes", "anyway", "csv", "as_json", "markdown")
    for name, value in given.items():
        source = ctx.get_parameter_source(name)
        if name not in allowed and source is not None and source.name != "DEFAULT":
            raise ConfigError(name, value, "a tournament that is resumed keeps its settings; leave it out")


def _strategies(text: str, base: RunConfig) -> tuple[str, ...]:
    """Returns the names of the strategies that `--strategies` asks for. Raises `ConfigError`."""
    if not text:
        raise ConfigError("strategies", "", f"give some, separated by commas, or all: {', '.join(STRATEGIES)}")
    if text != "all":
        return texts("strategies", text)
    return strategies_that_run(base)


def _base(given: dict[str, Any]) -> RunConfig:
    budget = {} if any(given[b] is not None for b in BUDGETS) else {"seconds": TRIAL_S}
    return RunConfig(**(given | {"name": ""} | budget))


def spec(options: dict[str, Any], given: dict[str, Any]) -> TournamentSpec:
    """Returns the tournament that the options ask for.

    `options` holds the options of `OPTIONS` by name, `given` the settings that all trials share. Raises `ConfigError`.
    """
    base = _base(given)
    if options["time"] is not None:  # under the option's name: --seconds is another option
        TOURNAMENT_BOUNDS["seconds"].check("time", options["time"])
    return TournamentSpec(
        base=base,
        strategies=_strategies(options["strategies"], base),
        batch_sizes=whole("batch_sizes", options["batch_sizes"] or DEFAULT_BATCH_SIZES),
        workers=whole("workers", options["workers"]) if options["workers"] else None,
        page_caches=texts("page_caches", options["page_caches"] or "as-is"),
        repeats=options["repeats"],
        seconds=options["time"],
        baseline=options["baseline"],
        early_stop=options["early_stop"],
        until_decided=options["until_decided"],
    )


def own_spec(options: dict[str, Any], given: dict[str, Any], ctx: typer.Context) -> TournamentSpec:
    """Returns the tournament on a script that the options ask for.

    `options` holds the options of `tournament` by name, `given` the settings of its jobs. Raises `ConfigError`.
    """
    if not options["command"]:
        raise ConfigError("vary", ",".join(options["vary"]), "give the script's command after --: -- python train.py")
    if not options["vary"]:
        raise ConfigError("vary", "", "say what of the script's DataLoader is tried: --vary workers=0,2,4")
    for name, value in (options | given).items():
        source = ctx.get_parameter_source(name)
        if name not in GO_WITH_A_SCRIPT and source is not None and source.name != "DEFAULT":
            raise ConfigError(name, value, "it does not go with a script of your own; leave it out")
    if options["time"] is not None:
        TOURNAMENT_BOUNDS["seconds"].check("time", options["time"])
    steps = TRIAL_STEPS if given["steps"] is None else given["steps"]
    return TournamentSpec(
        base=own_config("", steps=steps, telemetry_hz=given["telemetry_hz"]),
        strategies=(OWN_SCRIPT,),
        batch_sizes=(1,),
        repeats=options["repeats"],
        seconds=options["time"],
        baseline=UNCHANGED,
        early_stop=options["early_stop"],
        until_decided=options["until_decided"],
        script=OwnScript(tuple(options["command"]), os.getcwd(), tuple(read_varied(text) for text in options["vary"])),
    )


def is_to_be_agreed(store: RunStore, tournament_id: int) -> bool:
    """Returns whether the first trial of a script is done, but the user has not agreed yet to repeat it."""
    script = tournament(store, tournament_id).spec.script
    return script is not None and script.loader is not None and not script.agreed


def ask_to_repeat(store: RunStore, tournament_id: int, yes: bool) -> None:
    """Shows which files the first trial wrote, and asks whether to repeat the script. Does not ask if it wrote none or
    `yes` is given.

    Ends the program with status 2 if the user does not agree or there is no terminal to ask on.
    """
    script = tournament(store, tournament_id).spec.script
    assert script is not None
    for remark in dict.fromkeys(r for s in settings_of(script) for r in s.remarks):
        terminal.err.print(f"{remark}", soft_wrap=True)
    terminal.err.print(_sentence(written_words(script)), soft_wrap=True)
    for path in script.writes:
        terminal.err.print(f"  {path}", soft_wrap=True)
    if script.writes and not yes:
        terminal.err.print(
            "Every trial runs the script again and writes these files again. To write elsewhere in each trial, use the "
            "number of the trial, which the script finds in the environment variable VITPROF_TRIAL.",
            soft_wrap=True,
        )
        again = f"tournament {tournament_id} is paused; to repeat the script: {resume_command(tournament_id)} --yes"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            complain(again, EXIT_BAD_VALUE)
        if not _confirmed():
            complain(again, EXIT_BAD_VALUE)
    agree(store, tournament_id)


def _confirmed() -> bool:
    try:
        return typer.confirm("Repeat it?", err=True)
    except typer.Abort:  # Ctrl-C or end of input
        return False


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:].partition(': ')[0]}{':' if ': ' in words else '.'}"
