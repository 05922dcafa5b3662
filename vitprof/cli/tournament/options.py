"""The options of `tournament`, `tournament script` and `tournament resume`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.cli.common import options as common
from vitprof.cli.common import terminal
from vitprof.cli.common.terminal import JSON_HELP, reader
from vitprof.config import bounds, varied
from vitprof.errors import ConfigError

TRIAL_STEPS = 100
"""Length of a trial of a user's own script in training steps, unless --steps is given."""
SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}
"""Unit of time -> its seconds."""


def read_seconds(text: str) -> float:
    """Returns the seconds of a text such as 90, 90s, 10min or 2h. Raises `ValueError` for any other."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip()
    if unit not in SECONDS:
        raise ValueError(f"{unit} is no unit of time")
    return float(number) * SECONDS[unit]


def _read_time(text: str) -> float:
    seconds: float = reader("time", read_seconds, "give seconds, or such as 90s, 10min or 2h")(text)
    # under the option's name: --seconds is another option
    bounds.TOURNAMENT_BOUNDS["seconds"].check("time", seconds)
    return seconds


UNTIL_DECIDED_HELP = (
    f"add up to {bounds.MORE_ROUNDS} rounds of the settings that can still be the fastest, until it is "
    "decided"
)
TIME_HELP = "time limit for all runs together, such as 90, 90s, 10min or 2h: no run starts after it"
VARY_HELP = (
    "values to try, such as workers=0,2,4, workers=0..8 (all), workers=0..16:4 (every fourth) or workers=1..64:x2 "
    "(doubled); repeat it for other names: "
)
ON_HELP = (
    "run whole rounds on a cluster's nodes: ray, ray://HOST:PORT, slurm, or local; every node must reach "
    "the store that VITPROF_DB names"
)
YES_HELP = "run and repeat your own script without asking, whatever it writes"
IN_PLACE_HELP = "run your own script in its folder itself, where it overwrites its own files"
OTHER_ORDER_HELP = (
    "allow settings that give the script's samples in another order, so its losses may differ: "
    "--vary in_order=off, --vary across_epochs=on"
)
OTHER_PIXELS_HELP = (
    "allow decoders whose pixels differ from those that your own script has now, so its losses may differ: "
    "--vary decoder=opencv"
)
SLURM_HELP = "with --on slurm: an option of sbatch, such as partition=gpu or gpus-per-node=8"


def _option(panel: str, help_text: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help_text, rich_help_panel=panel, **more)


def _whole(name: str, panel: str, help_text: str) -> Any:
    read = reader(name, int, "give a whole number")
    return _option(panel, help_text, parser=read, metavar="INTEGER")


def time_option(help_text: str) -> Any:
    """Returns `--time`."""
    return _option("Tournament", help_text, parser=_read_time, metavar="TIME")


def vary_option(names: Sequence[str]) -> Any:
    """Returns `--vary` for settings of these names."""
    return _option("Tournament", VARY_HELP + ", ".join(names), metavar="NAME=VALUES")


Repeats = Annotated[int, _whole("repeats", "Tournament", "rounds; every setting runs once in each")]
UntilDecided = Annotated[
    bool, _option("Tournament", UNTIL_DECIDED_HELP, "--until-decided/--no-until-decided")
]
EarlyStop = Annotated[
    bool,
    _option(
        "Tournament",
        "stop a setting early once it clearly cannot be the fastest",
        "--early-stop/--no-early-stop",
    ),
]
Time = Annotated[float | None, time_option(TIME_HELP)]
VaryOfAJob = Annotated[list[str] | None, vary_option(varied.OF_A_JOB)]
VaryOfAScript = Annotated[list[str] | None, vary_option(varied.OF_A_SCRIPT)]
Anyway = Annotated[bool, _option("Work", common.ANYWAY_HELP, "--anyway")]
Yes = Annotated[bool, _option("Work", YES_HELP, "--yes")]
InPlace = Annotated[bool, _option("Work", IN_PLACE_HELP, "--in-place")]
AllowOtherOrder = Annotated[bool, _option("Tournament", OTHER_ORDER_HELP, "--allow-other-order")]
AllowOtherPixels = Annotated[bool, _option("Tournament", OTHER_PIXELS_HELP, "--allow-other-pixels")]
On = Annotated[str, _option("Cluster", ON_HELP, metavar="ENGINE")]
Nodes = Annotated[
    int | None,
    _whole("nodes", "Cluster", "the most nodes to use at once; all of them if not given"),
]
Slurm = Annotated[list[str] | None, _option("Cluster", SLURM_HELP, metavar="NAME=VALUE")]
Csv = Annotated[Path | None, _option("Output", "write a row for each setting to this file")]
AsJson = Annotated[bool, _option("Output", JSON_HELP, "--json")]
Markdown = Annotated[
    bool,
    _option("Output", "print the table of epoch times by batch size in Markdown", "--markdown"),
]


@dataclass(frozen=True)
class Cluster:
    """The nodes that run the rounds of a tournament."""

    engine: str
    """ray, ray://HOST:PORT, slurm or local."""
    nodes: int | None
    """The most of them at once; None: all."""
    sbatch: dict[str, str]
    """Options of sbatch."""


def refuse_on_cluster(context: typer.Context) -> None:
    """Raises `ConfigError` for an option that does nothing where nodes run the rounds."""
    terminal.refuse_given(
        context, ["anyway"], "a node runs its rounds one after another; leave it or --on out"
    )
    terminal.refuse_given(
        context, ["time"], "nodes keep no time limit together; give --repeats, or leave --on out"
    )
    if context.params.get("early_stop"):
        why = "nodes cut no setting short, as that would compare them; leave it or --on out"
        terminal.refuse_given(context, ["early_stop"], why)


def check_format(*, as_json: bool, markdown: bool) -> None:
    """Raises `ConfigError` where results are asked for in two formats."""
    if as_json and markdown:
        raise ConfigError("markdown", True, "--json prints one object and nothing else")


def read_cluster(on: str, nodes: int | None, slurm: Sequence[str] | None) -> Cluster | None:
    """Returns the cluster that these options name; None without `--on`. Raises `ConfigError`."""
    given = list(slurm or ())
    if given and on != "slurm":
        raise ConfigError("slurm", " ".join(given), "it goes with --on slurm")
    if nodes is not None and not on:
        raise ConfigError("nodes", nodes, "it goes with --on")
    if nodes is not None and on == "local":
        raise ConfigError("nodes", nodes, "--on local is this machine alone; leave it out")
    if nodes is not None and nodes < 1:
        raise ConfigError("nodes", nodes, "give at least 1")
    if not on:
        return None
    sbatch = {}
    for option in given:
        name, separator, value = option.partition("=")
        if not (name and separator):
            raise ConfigError("slurm", option, "give NAME=VALUE, such as partition=gpu")
        sbatch[name] = value
    return Cluster(on, nodes, sbatch)
