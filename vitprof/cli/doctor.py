"""`strategies` and `doctor`: which loading strategies can run here, and whether this machine has what vitprof needs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from vitprof.cli.common import terminal
from vitprof.config import RunConfig
from vitprof.config.availability import Availability, Machine, availability, look_around
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.config.strategies import STRATEGIES, Strategy

N_IMAGES_HELP = "number of training images, where the data set can have any (photos)"


def strategies(
    dataset: Annotated[str, typer.Option("--dataset", help="data set to check them for")] = RunConfig.dataset,
    n_images: Annotated[int | None, terminal.number("n_images", RUN_BOUNDS["n_images"], N_IMAGES_HELP)] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List the loading strategies, and whether each can run here."""
    info, machine = dataset_info(dataset, n_images), look_around()
    if as_json:
        listed = [_as_object(s, info, machine) for s in STRATEGIES.values()]
        terminal.print_json({"dataset": info.name, "strategies": listed})
        return
    rows = []
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
        rows.append((Text.assemble((s.name, "bold"), "\n", s.title), Group(*lines, here)))
    terminal.show_table(("strategy", "what it does, when it helps, what it costs"), rows, show_lines=True)


def _knobs(strategy: Strategy, info: DatasetInfo) -> dict[str, Any]:
    return strategy.knobs(strategy.combination(info), info)


def _here(seen: Availability) -> Text:
    word = "no" if seen.verdict == "bad" else "yes"
    return Text.assemble(
        "Runs here: ", (word, terminal.VERDICT_COLOURS[seen.verdict]), f"; {seen.reason}" if seen.reason else ""
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


def doctor(as_json: terminal.AsJson = False) -> None:
    """Check versions, GPU, NVML, shared memory, disk and database, with a verdict for each.

    The exit status is 1 if a verdict is bad. `schema doctor` describes the object of --json.
    """
    from vitprof.jobs.preflight import examine

    checks = list(examine())
    if as_json:
        terminal.print_json({"checks": checks})
    else:
        colours = terminal.VERDICT_COLOURS
        rows = (
            (c.name, c.found, Text.assemble((c.verdict, colours[c.verdict]), f": {c.meaning}" if c.meaning else ""))
            for c in checks
        )
        terminal.show_table(("what", "found", "verdict"), rows)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(terminal.EXIT_FAILED)
