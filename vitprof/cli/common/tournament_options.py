"""The options of `tournament`, and the `TournamentSpec` that they ask for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.cli.common.lists import read_seconds, strategies_that_run, texts, whole
from vitprof.cli.common.options import ANYWAY_HELP, option, parameter
from vitprof.cli.common.terminal import JSON_HELP, reader
from vitprof.config import BUDGETS, CHOICES, GROUPS, PARTS, RunConfig
from vitprof.config.bounds import MORE_ROUNDS, TOURNAMENT_BOUNDS
from vitprof.config.own_script_trials import VARIED
from vitprof.config.strategies import STRATEGIES
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.tuning.forecast import DEFAULT_S

DEFAULT_BATCH_SIZES = str(RunConfig.batch_size)
TRIAL_S = 5.0
"""Seconds of training in each trial if no budget is given."""
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
    name: str, flag: str, kind: Any, default: Any, text: str, panel: str = TOURNAMENT_PANEL, **more: Any
) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(flag, help=text, rich_help_panel=panel, **more)]
    return parameter(name, annotation, default)


def _number(name: str, flag: str, kind: type, default: Any, text: str, metavar: str = "INTEGER") -> inspect.Parameter:
    allowed = "give a whole number" if kind is int else "give a number"
    read = reader(name, kind, allowed)
    return _own(name, flag, kind if default is not None else kind | None, default, text, parser=read, metavar=metavar)


OPTIONS = (
    parameter(
        "command",
        Annotated[
            list[str] | None,
            typer.Argument(help="your own script, after --: python train.py", metavar="[-- COMMAND...]"),
        ],
    ),
    parameter(
        "vary",
        Annotated[
            list[str] | None,
            typer.Option(
                "--vary",
                metavar="NAME=VALUES",
                help=f"values to try for your own script's DataLoader, such as workers=0,2,4; repeat it for other "
                f"names: {', '.join(VARIED)}",
                rich_help_panel=TOURNAMENT_PANEL,
            ),
        ],
    ),
    _own("yes", "--yes", bool, False, "repeat your own script without asking, whatever it writes", WORK_PANEL),
    _own("strategies", "--strategies", str, "", "strategies, separated by commas, or all: every one that can run here"),
    _own(
        "batch_sizes",
        "--batch-sizes",
        str,
        "",
        f"batch sizes, separated by commas; {RunConfig.batch_size} if not given",
    ),
    _own("workers", "--workers", str, "", "numbers of workers, separated by commas; each strategy's own if not given"),
    _own(
        "page_caches",
        "--page-caches",
        str,
        "",
        f"states of the page cache, separated by commas: {', '.join(CHOICES['page_cache'])}",
    ),
    _number("repeats", "--repeats", int, 3, "rounds; every setting runs once in each"),
    _own(
        "until_decided",
        "--until-decided/--no-until-decided",
        bool,
        True,
        f"add up to {MORE_ROUNDS} rounds of the settings that can still be the fastest, until it is decided",
    ),
    _number("more_rounds", "--more-rounds", int, None, "with --resume: run this many more rounds of every setting"),
    _own("baseline", "--baseline", str, "", "key of the setting to compare with, such as memory/b64/w-/as-is"),
    _own(
        "early_stop",
        "--early-stop/--no-early-stop",
        bool,
        True,
        "stop a setting early once it clearly cannot be the fastest",
    ),
    _own(
        "time",
        "--time",
        float | None,
        None,
        "time limit for all runs together, such as 90, 90s, 10min or 2h: no run starts after it; if it is too short "
        "for all settings of your own script, the best third goes on after each round; with --auto: time for the "
        f"search (default {DEFAULT_S:g})",
        parser=reader("time", read_seconds, "give seconds, or such as 90s, 10min or 2h"),
        metavar="TIME",
    ),
    _own("auto", "--auto", bool, False, "find workers, prefetch factor and batch size of one strategy", WORK_PANEL),
    _number("resume", "--resume", int, None, "continue a tournament; show it again if it is done"),
    _own(
        "take_over",
        "--take-over",
        bool,
        False,
        "with --resume: take it over from a machine or container that is gone",
        WORK_PANEL,
    ),
    _own("anyway", "--anyway", bool, False, ANYWAY_HELP, WORK_PANEL),
    _own("show_list", "--list", bool, False, "list the tournaments in the store", WORK_PANEL),
    _own("csv", "--csv", Path | None, None, "write a row for each setting to this file", OUTPUT_PANEL),
    _own("as_json", "--json", bool, False, JSON_HELP, OUTPUT_PANEL),
    _own(
        "markdown", "--markdown", bool, False, "print the table of epoch times by batch size in Markdown", OUTPUT_PANEL
    ),
)


def _shared(name: str, panel: str) -> inspect.Parameter:
    made = option(name, panel)
    made.annotation.__metadata__[0].help = SHARED_HELP.get(name, made.annotation.__metadata__[0].help)
    return made.replace(default=False) if name == "evaluate" else made


CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
SIGNATURE = inspect.Signature([CONTEXT, *OPTIONS, *(_shared(name, panel) for name, panel in SHARED.items())])


def no_other_settings(given: dict[str, Any], ctx: typer.Context) -> None:
    """Raises `ConfigError` if a setting was given for a tournament that is resumed, even with its default value."""
    told = ("resume", "more_rounds", "take_over", "yes", "anyway", "csv", "as_json", "markdown")
    for name, value in given.items():
        source = ctx.get_parameter_source(name)
        if name not in told and source is not None and source.name != "DEFAULT":
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


def spec(asked: dict[str, Any], given: dict[str, Any]) -> TournamentSpec:
    """Returns the tournament that the options ask for.

    `asked` holds the options of `OPTIONS` by name, `given` the settings that all trials share. Raises `ConfigError`.
    """
    base = _base(given)
    if asked["time"] is not None:  # under the option's name: --seconds is another option
        TOURNAMENT_BOUNDS["seconds"].check("time", asked["time"])
    return TournamentSpec(
        base=base,
        strategies=_strategies(asked["strategies"], base),
        batch_sizes=whole("batch_sizes", asked["batch_sizes"] or DEFAULT_BATCH_SIZES),
        workers=whole("workers", asked["workers"]) if asked["workers"] else None,
        page_caches=texts("page_caches", asked["page_caches"] or "as-is"),
        repeats=asked["repeats"],
        seconds=asked["time"],
        baseline=asked["baseline"],
        early_stop=asked["early_stop"],
        until_decided=asked["until_decided"],
    )
