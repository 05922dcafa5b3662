"""`tournament` for a user's own script: its options, and the question that it asks after the first trial."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from vitprof.cli.common import terminal
from vitprof.cli.common.terminal import EXIT_BAD_VALUE, complain
from vitprof.config.bounds import TOURNAMENT_BOUNDS
from vitprof.config.own_script import OWN_SCRIPT, own_config
from vitprof.config.own_script_trials import UNCHANGED, OwnScript, read_varied, settings_of
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.tournament.own_script import agree, resume_command, written_words
from vitprof.store import RunStore
from vitprof.store.tournaments import tournament

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


def own_spec(asked: dict[str, Any], given: dict[str, Any], ctx: typer.Context) -> TournamentSpec:
    """Returns the tournament on a script that the options ask for.

    `asked` holds the options of `tournament` by name, `given` the settings of its jobs. Raises `ConfigError`.
    """
    if not asked["command"]:
        raise ConfigError("vary", ",".join(asked["vary"]), "give the script's command after --: -- python train.py")
    if not asked["vary"]:
        raise ConfigError("vary", "", "say what of the script's DataLoader is tried: --vary workers=0,2,4")
    for name, value in (asked | given).items():
        source = ctx.get_parameter_source(name)
        if name not in GO_WITH_A_SCRIPT and source is not None and source.name != "DEFAULT":
            raise ConfigError(name, value, "it does not go with a script of your own; leave it out")
    if asked["time"] is not None:
        TOURNAMENT_BOUNDS["seconds"].check("time", asked["time"])
    steps = TRIAL_STEPS if given["steps"] is None else given["steps"]
    return TournamentSpec(
        base=own_config("", steps=steps, telemetry_hz=given["telemetry_hz"]),
        strategies=(OWN_SCRIPT,),
        batch_sizes=(1,),
        repeats=asked["repeats"],
        seconds=asked["time"],
        baseline=UNCHANGED,
        early_stop=asked["early_stop"],
        until_decided=asked["until_decided"],
        script=OwnScript(tuple(asked["command"]), os.getcwd(), tuple(read_varied(text) for text in asked["vary"])),
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
