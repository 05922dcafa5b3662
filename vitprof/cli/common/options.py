"""Options generated from the fields of `RunConfig`, for `run` and `tournament`, and parsers of their values."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.cli.common.progress import progress
from vitprof.cli.common.terminal import reader
from vitprof.config import (
    CHOICES,
    RunConfig,
    bounds,
    descriptions,
    models,
    parts,
    varied,
)
from vitprof.config.availability import look_around, why_unavailable
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets import catalog
from vitprof.datasets.own import registry, specs
from vitprof.errors import ConfigError

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
CONTEXT = inspect.Parameter(
    "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
"""The parameter that gets Typer's context, of a command whose signature is generated."""


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
        # the user's own are not named: this is made for every command, and their list may be on a drive
        # that does not answer
        text += f"; one of {', '.join(registry.VITPROFS)}, or your own (datasets lists them)"
    elif name == "model":
        settings |= {"metavar": "NAME", "parser": model_named}
        text += (
            f"; one of {', '.join(models.MODELS)}, torchvision:NAME, timm:NAME, or file.py:FUNCTION"
        )
    elif name in KNOWN_NAMES and not help_text:
        known = KNOWN_NAMES[name]
        if not all(each in text for each in known):
            # only shown: RunConfig checks the value and has the message for it
            text += f"; one of {', '.join(known)}"
    annotation = kind | None if optional else kind
    return parameter(name, annotation, field.default, text, panel, **settings)


def check_budget(config: RunConfig) -> None:
    """Raises `ConfigError` for a least number of steps that does nothing: only seconds can be too few."""
    if config.least_steps and config.seconds is None:
        raise ConfigError("least_steps", config.least_steps, "it goes with --seconds")


def data_set(name_or_spec: str) -> str:
    """Returns the name of a data set; of one given as a spec, a new name, once it was looked at.

    Raises `ConfigError`.
    """
    if ":" not in name_or_spec:
        return name_or_spec
    from vitprof.datasets.own.bounded import look
    from vitprof.datasets.own.specs import absolute

    name = registry.name_of(absolute(name_or_spec))
    if name not in registry.listed():
        with progress() as show:
            registry.add(
                look(name, name_or_spec, progress=lambda done, words: show(words, done)).own
            )
    return name


def model_named(text: str) -> str:
    """Returns the name of a model; a function of the user's may then be called in this command's jobs."""
    function = specs.FUNCTION.fullmatch(text)
    library, _, _ = text.partition(":")
    if function is None or library in models.MODEL_LIBRARIES:
        return text
    os.environ[specs.CODE_ALLOWED] = "1"
    file = Path(function["module"])
    if file.suffix != ".py":
        return text
    # jobs run in another directory
    return f"{file.absolute()}:{function['function']}"


def texts(
    name: str, text: str, allowed: str = "give values separated by commas"
) -> tuple[str, ...]:
    """Returns the values of option `name`, at least one. Raises `ConfigError` with `allowed` for none."""
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    if not values:
        raise ConfigError(name, text, allowed)
    return values


def numbers(name: str, text: str, allowed: bounds.Bounds) -> tuple[int, ...]:
    """Returns the whole numbers of option `name`, a list or a range. Raises `ConfigError`."""
    try:
        return varied.read_numbers(text, allowed)
    except ValueError as error:
        raise ConfigError(name, text, str(error)) from None


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
