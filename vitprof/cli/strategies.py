"""`strategies`: lists the loading strategies, and whether each can run here."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vitprof.cli.common.terminal import VERDICT_COLOURS, AsJson, number, out, print_json
from vitprof.config import RunConfig
from vitprof.config.availability import Availability, Machine, availability, look_around
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.config.strategies import STRATEGIES, Strategy

DEFAULTS = RunConfig()
N_IMAGES_HELP = "number of training images, where the data set can have any number (photos)"


def strategies(
    dataset: Annotated[str, typer.Option("--dataset", help="data set to check them for")] = DEFAULTS.dataset,
    n_images: Annotated[
        int | None,
        number(
            "n_images", RUN_BOUNDS["n_images"], "number of training images, where the data set can have any (photos)"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the loading strategies, and whether each can run here."""
    info, machine = dataset_info(dataset, n_images), look_around()
    if as_json:
        listed = [_as_object(s, info, machine) for s in STRATEGIES.values()]
        print_json({"dataset": info.name, "strategies": listed})
        return
    table = Table("strategy", "what it does, when it helps, what it costs", show_lines=True)
    for s in STRATEGIES.values():
        takes = ", ".join(f"{name}={value}" for name, value in _knobs(s, info).items() if value is not None)
        lines = [
            s.what,
            f"When: {s.when}",
            f"Costs: {s.costs}",
            f"From: {s.origin}",
            f"Takes: {takes or 'no settings'}",
        ]
        here = _here(availability(s, info, machine=machine))
        table.add_row(Text.assemble((s.name, "bold"), "\n", s.title), Group(*lines, here))
    out.print(table)


def _knobs(strategy: Strategy, info: DatasetInfo) -> dict[str, Any]:
    return strategy.knobs(strategy.combination(info), info)


def _here(seen: Availability) -> Text:
    word = "no" if seen.verdict == "bad" else "yes"
    return Text.assemble(
        "Runs here: ", (word, VERDICT_COLOURS[seen.verdict]), f"; {seen.reason}" if seen.reason else ""
    )


def _as_object(strategy: Strategy, info: DatasetInfo, machine: Machine) -> dict[str, Any]:
    """Returns a strategy as plain values for JSON, with its parts and defaults for this data set."""
    seen = availability(strategy, info, machine=machine)
    return {
        **dataclasses.asdict(strategy),
        **dataclasses.asdict(strategy.combination(info)),
        "defaults": _knobs(strategy, info),
        "available": seen.verdict != "bad",
        "availability": seen.verdict,
        "reason": seen.reason,
    }
