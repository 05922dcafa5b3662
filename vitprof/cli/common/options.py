"""Options: those of `run` and `tournament`, generated from the fields of `RunConfig`, and parsers of their
values.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.cli.common.progress import progress
from vitprof.cli.common.terminal import JSON_HELP, reader
from vitprof.config import (
    CHOICES,
    GROUPS,
    PARTS,
    RunConfig,
    bounds,
    catalog,
    descriptions,
    parts,
    varied,
)
from vitprof.config.availability import look_around, why_unavailable
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError
from vitprof.sets import registry, specs

CONFIG_FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}
NUMBER_TYPES: dict[str, tuple[type, str]] = {"int": (int, "INTEGER"), "float": (float, "NUMBER")}
"""Type of a field of `RunConfig`, without " | None" -> the type that parses it, and its name in the help."""
KNOWN_NAMES: dict[str, Iterable[str]] = {"strategy": STRATEGIES, **parts.PARTS_BY_KIND, **CHOICES}
"""Option -> the names that it takes, shown in the help."""

ANYWAY_HELP = (
    "begin even while another program's job runs on this machine: they slow each other down, and both runs are marked. "
    "If not given, wait for that job (Ctrl-C ends the wait)"
)
Anyway = Annotated[bool, typer.Option("--anyway", help=ANYWAY_HELP)]


def parameter(
    name: str,
    kind: Any,
    default: Any,
    help_text: str,
    panel: str | None = None,
    *,
    flag: str = "",
    **more: Any,
) -> inspect.Parameter:
    """Returns an option as a keyword argument for a command whose signature is generated.

    `panel`: the heading of the help under which it is shown. `flag`: its flag; default: made of its name.
    """
    flag = flag or "--" + name.replace("_", "-")
    typed = typer.Option(flag, help=help_text, rich_help_panel=panel, **more)
    return keyword(name, Annotated[kind, typed], default)


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Returns a keyword argument for a command whose signature is generated."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def takes(*parameters: inspect.Parameter) -> Callable[[Any], Any]:
    """Gives a command these parameters: Typer reads them from its signature."""

    def with_signature(command: Any) -> Any:
        command.__signature__ = inspect.Signature(parameters)
        return command

    return with_signature


def option(name: str, panel: str | None = None, *, help_text: str = "") -> inspect.Parameter:
    """Returns the option of a field of `RunConfig`, by default with the field's description as help."""
    field = CONFIG_FIELDS[name]
    type_name, _, optional = str(field.type).partition(" | ")
    settings: dict[str, Any] = {"show_default": field.default not in (None, False, "")}
    text = help_text or descriptions()[name]
    kind: type = str
    if type_name == "bool":
        kind = bool
        settings["flag"] = f"--{name}/--no-{name}".replace("_", "-")
    elif type_name in NUMBER_TYPES:
        kind, metavar = NUMBER_TYPES[type_name]
        settings |= {
            "metavar": metavar,
            "parser": reader(name, kind, bounds.RUN_BOUNDS[name].allowed),
        }
    elif name == "dataset":
        settings |= {"metavar": "NAME|SPEC", "parser": data_set}
        text += f"; one of {', '.join(catalog.DATASETS)}, or your own (datasets --help)"
    elif name == "model":
        settings |= {"metavar": "NAME", "parser": model_named}
        text += f"; one of {', '.join(catalog.MODELS)}, torchvision:NAME, timm:NAME, or file.py:FUNCTION"
    elif name in KNOWN_NAMES and not help_text:
        # only shown: RunConfig checks the value and has the message for it
        text += f"; one of {', '.join(KNOWN_NAMES[name])}"
    annotation = kind | None if optional else kind
    return parameter(name, annotation, field.default, text, panel, **settings)


def data_set(given: str) -> str:
    """Returns the name of a data set; of one given as a spec, a new name, once it was looked at.

    Raises `ConfigError`.
    """
    if ":" not in given:
        return given
    from vitprof.sets.look import absolute, look

    name = registry.name_of(absolute(given))
    if name not in registry.listed():
        with progress() as show:
            registry.add(look(name, given, progress=lambda done, words: show(words, done)).own)
    return name


def model_named(given: str) -> str:
    """Returns the name of a model; a function of the user's may then be called in this command's jobs."""
    function = specs.FUNCTION.fullmatch(given)
    library, _, _ = given.partition(":")
    if function is None or library in catalog.MODEL_LIBRARIES:
        return given
    os.environ[specs.CODE_ALLOWED] = "1"
    file = Path(function["module"])
    if file.suffix != ".py":
        return given
    # jobs run in another directory
    return f"{file.absolute()}:{function['function']}"


SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}
"""Unit of time -> its seconds."""


def texts(
    name: str, given: str, allowed: str = "give values separated by commas"
) -> tuple[str, ...]:
    """Returns the values of option `name`, at least one. Raises `ConfigError` with `allowed` for none."""
    values = tuple(part.strip() for part in given.split(",") if part.strip())
    if not values:
        raise ConfigError(name, given, allowed)
    return values


def numbers(name: str, given: str, allowed: bounds.Bounds) -> tuple[int, ...]:
    """Returns the whole numbers of option `name`, a list or a range. Raises `ConfigError`."""
    try:
        return varied.read_numbers(given, allowed)
    except ValueError as error:
        raise ConfigError(name, given, str(error)) from None


def read_seconds(text: str) -> float:
    """Returns the seconds of a text such as 90, 90s, 10min or 2h. Raises `ValueError` for any other."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip()
    if unit not in SECONDS:
        raise ValueError(f"{unit} is no unit of time")
    return float(number) * SECONDS[unit]


def strategies_that_run(config: RunConfig) -> tuple[str, ...]:
    """Returns the names of the strategies that can load the config's data set here: what "all" means. Raises
    `ConfigError` where none can, as where PyTorch is not installed.
    """
    machine = look_around()
    info = catalog.dataset_info(config.dataset, config.n_images)
    why_not = {s.name: why_unavailable(s, info, machine) for s in STRATEGIES.values()}
    running = tuple(name for name, why in why_not.items() if not why)
    if not running:
        first = why_not[config.strategy]
        raise ConfigError("strategies", "all", f"none of them can run here: {first}")
    return running


# the options of `tournament`

TRIAL_S = 5.0
"""Seconds of training in each trial if no budget is given."""
OF_EACH_TRIAL = (*PARTS, "strategy", "batch_size", "workers", "page_cache", "replay")
"""Fields of `RunConfig` that are no options here, because each trial has its own."""
SHARED = {
    name: panel for panel, names in GROUPS.items() for name in names if name not in OF_EACH_TRIAL
}
SHARED_HELP = {
    "epochs": "budget of each trial: epochs",
    "steps": "budget of each trial: training steps",
    "seconds": f"budget of each trial: seconds of training; {TRIAL_S:g} if no budget is given",
    "evaluate": "evaluate on the test set in each trial",
    "name": "name of the tournament",
}
COMMAND_HELP = "your own script, after --: python train.py"
VARY_HELP = (
    "values to try, such as workers=0,2,4, workers=0..8 (all), workers=0..16:4 (every fourth) or workers=1..64:x2 "
    "(doubled); repeat it for other names: "
    + ", ".join(varied.OF_A_JOB)
    + "; for your own script also decode_cache"
)
TIME_HELP = (
    "time limit for all runs together, such as 90, 90s, 10min or 2h: no run starts after it; if it is too short "
    "for all settings of your own script, the best third goes on after each round"
)
HELP = {
    "strategies": "strategies, separated by commas, or all: every one that can run here",
    "batch_sizes": f"batch sizes, as 64,512 or 64..1024:x2; {RunConfig.batch_size} if not given",
    "workers": "numbers of workers, as 0,2,4 or 0..8; each strategy's own if not given",
    "page_caches": f"states of the page cache, separated by commas: {', '.join(CHOICES['page_cache'])}",
    "baseline": "key of the setting to compare with, such as memory/b64/w-/as-is",
    "repeats": "rounds; every setting runs once in each",
    "more_rounds": "with --resume: run this many more rounds of every setting",
    "resume": "continue a tournament; show it again if it is done",
    "until_decided": f"add up to {bounds.MORE_ROUNDS} rounds of the settings that can still be the fastest, until it "
    "is decided",
    "early_stop": "stop a setting early once it clearly cannot be the fastest",
    "yes": "run and repeat your own script without asking, whatever it writes",
    "in_place": "run your own script in its folder itself, where it overwrites its own files",
    "take_over": "with --resume: take it over from a machine or container that is gone",
    "anyway": ANYWAY_HELP,
    "on": "run whole rounds on a cluster's nodes: ray, ray://HOST:PORT, slurm, or local; every node must reach the "
    "store that VITPROF_DB names",
    "nodes": "the most nodes to use at once; all of them if not given",
    "slurm": "with --on slurm: an option of sbatch, such as partition=gpu or gpus-per-node=8",
}
"""Option of `tournament` alone -> its help."""


def _own(
    name: str, kind: Any, default: Any, panel: str = "Tournament", **more: Any
) -> inspect.Parameter:
    return parameter(name, kind, default, HELP[name], panel, **more)


def _whole(name: str, default: int | None) -> inspect.Parameter:
    kind = int if default is not None else int | None
    return _own(
        name, kind, default, parser=reader(name, int, "give a whole number"), metavar="INTEGER"
    )


READ_TIME = reader("time", read_seconds, "give seconds, or such as 90s, 10min or 2h")
OPTIONS = (
    keyword(
        "command",
        Annotated[list[str] | None, typer.Argument(help=COMMAND_HELP, metavar="[-- COMMAND...]")],
    ),
    parameter("vary", list[str] | None, None, VARY_HELP, "Tournament", metavar="NAME=VALUES"),
    _own("yes", bool, False, "Work"),
    _own("in_place", bool, False, "Work"),
    *(_own(name, str, "") for name in ("strategies", "batch_sizes", "workers", "page_caches")),
    _whole("repeats", 3),
    _own("until_decided", bool, True, flag="--until-decided/--no-until-decided"),
    _whole("more_rounds", None),
    _own("baseline", str, ""),
    _own("early_stop", bool, True, flag="--early-stop/--no-early-stop"),
    parameter(
        "time", float | None, None, TIME_HELP, "Tournament", parser=READ_TIME, metavar="TIME"
    ),
    _whole("resume", None),
    _own("take_over", bool, False, "Work"),
    _own("anyway", bool, False, "Work"),
    _own("on", str, "", "Cluster", metavar="ENGINE"),
    _own(
        "nodes",
        int | None,
        None,
        "Cluster",
        parser=reader("nodes", int, "give a whole number"),
        metavar="INTEGER",
    ),
    parameter("slurm", list[str] | None, None, HELP["slurm"], "Cluster", metavar="NAME=VALUE"),
    parameter("show_list", bool, False, "list the tournaments in the store", "Work", flag="--list"),
    parameter("csv", Path | None, None, "write a row for each setting to this file", "Output"),
    parameter("as_json", bool, False, JSON_HELP, "Output", flag="--json"),
    parameter(
        "markdown",
        bool,
        False,
        "print the table of epoch times by batch size in Markdown",
        "Output",
    ),
)


def _shared(name: str, panel: str) -> inspect.Parameter:
    shared = option(name, panel, help_text=SHARED_HELP.get(name, ""))
    if name == "evaluate":
        # it would take longer than a trial
        shared = shared.replace(default=False)
    return shared


CONTEXT = inspect.Parameter(
    "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
TOURNAMENT = (CONTEXT, *OPTIONS, *(_shared(name, panel) for name, panel in SHARED.items()))
