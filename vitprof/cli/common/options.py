"""Options: those of `run`, generated from the fields of `RunConfig`, and parsers of values separated by commas."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from vitprof.cli.common.terminal import reader
from vitprof.config import CHOICES, GROUPS, RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.catalog import DATASETS, MODELS
from vitprof.config.parts import PARTS_BY_KIND
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError

CONFIG_FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}
NUMBER_TYPES: dict[str, tuple[type, str]] = {"int": (int, "INTEGER"), "float": (float, "NUMBER")}
"""Type of a field of `RunConfig`, without " | None" -> the type that parses it, and its name in the help."""
KNOWN_NAMES: dict[str, Iterable[str]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "strategy": STRATEGIES,
    **PARTS_BY_KIND,
    **CHOICES,
}
"""Option -> the names that it takes, shown in the help."""

ANYWAY_HELP = (
    "begin even while another program's job runs on this machine: they slow each other down, and both runs are marked. "
    "If not given, wait for that job (Ctrl-C ends the wait)"
)
Anyway = Annotated[bool, typer.Option("--anyway", help=ANYWAY_HELP)]


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Returns a keyword argument for a command whose signature is generated."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option(name: str, panel: str | None = None) -> inspect.Parameter:
    """Returns the field of `RunConfig` called `name` as a keyword argument that Typer turns into an option.

    `panel`: heading of the help under which it is shown.
    """
    field = CONFIG_FIELDS[name]
    type_name, _, optional = str(field.type).partition(" | ")
    flag = "--" + name.replace("_", "-")
    settings: dict[str, Any] = {"help": field.metadata["description"], "rich_help_panel": panel}
    settings["show_default"] = field.default not in (None, False, "")
    kind: type = str
    if type_name == "bool":
        kind, flag = bool, f"{flag}/--no-{flag.removeprefix('--')}"
    elif type_name in NUMBER_TYPES:
        kind, metavar = NUMBER_TYPES[type_name]
        settings |= {"metavar": metavar, "parser": reader(name, kind, RUN_BOUNDS[name].allowed)}
    elif name in KNOWN_NAMES:  # only shown: RunConfig checks the value and has the message for it
        settings["help"] += f"; one of {', '.join(KNOWN_NAMES[name])}"
    annotation: Any = Annotated[kind | None if optional else kind, typer.Option(flag, **settings)]
    return parameter(name, annotation, field.default)


def run_signature(*more: inspect.Parameter) -> inspect.Signature:
    """Returns a signature with every field of `RunConfig` as an option, in the panels of `GROUPS`, then `more`."""
    return inspect.Signature([*(option(name, panel) for panel, names in GROUPS.items() for name in names), *more])


SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}


def texts(name: str, given: str, allowed: str = "give values separated by commas") -> tuple[str, ...]:
    """Returns the values of option `name`, at least one. Raises `ConfigError` with `allowed` if there is none."""
    values = tuple(part.strip() for part in given.split(",") if part.strip())
    if not values:
        raise ConfigError(name, given, allowed)
    return values


def whole(name: str, given: str) -> tuple[int, ...]:
    """Returns the whole numbers of option `name`, at least one. Raises `ConfigError` for anything else."""
    read = reader(name, int, "give whole numbers separated by commas")
    return tuple(read(part) for part in texts(name, given))


def read_seconds(text: str) -> float:
    """Returns the seconds of a text such as 90, 90s, 10min or 2h. Raises `ValueError` for any other."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip()
    if unit not in SECONDS:
        raise ValueError(f"{unit} is no unit of time")
    return float(number) * SECONDS[unit]


def strategies_that_run(config: RunConfig) -> tuple[str, ...]:
    """Returns the names of the strategies that can load the config's data set here: what "all" means."""
    from vitprof.config.availability import look_around, why_unavailable
    from vitprof.config.catalog import dataset_info

    machine, info = look_around(), dataset_info(config.dataset, config.n_images)
    return tuple(s.name for s in STRATEGIES.values() if not why_unavailable(s, info, machine))
