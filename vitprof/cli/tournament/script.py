"""`tournament script`: runs a user's own script with other arguments for its train DataLoader."""

import os
from typing import Annotated

import typer

from vitprof.cli.common import terminal
from vitprof.cli.tournament import options
from vitprof.cli.tournament.running import ResultOutput, Running, run_stored
from vitprof.config import RunConfig, bounds, descriptions
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import OF_A_SCRIPT, read_varied
from vitprof.errors import ConfigError
from vitprof.experiments.tournament import planning
from vitprof.jobs.trial_folder import IN_PLACE, Isolation, isolation_of

COMMAND_HELP = "your own script, after --: python train.py"
STEPS_HELP = "training steps of each trial"
TIME_HELP = f"{options.TIME_HELP}; if it is too short for all settings, the best third goes on after each round"


def script(
    command: Annotated[
        list[str],
        typer.Argument(help=COMMAND_HELP, metavar="-- COMMAND...", show_default=False),
    ],
    vary: options.VaryOfAScript = None,
    allow_other_order: options.AllowOtherOrder = False,
    allow_other_pixels: options.AllowOtherPixels = False,
    steps: Annotated[
        int, terminal.number("steps", bounds.RUN_BOUNDS["steps"], STEPS_HELP)
    ] = options.TRIAL_STEPS,
    repeats: options.Repeats = 3,
    until_decided: options.UntilDecided = True,
    early_stop: options.EarlyStop = True,
    time: Annotated[float | None, options.time_option(TIME_HELP)] = None,
    name: Annotated[str, typer.Option(help="name of the tournament")] = "",
    telemetry_hz: Annotated[
        float,
        terminal.number(
            "telemetry_hz", bounds.RUN_BOUNDS["telemetry_hz"], descriptions()["telemetry_hz"]
        ),
    ] = RunConfig.telemetry_hz,
    yes: options.Yes = False,
    in_place: options.InPlace = False,
    anyway: options.Anyway = False,
    csv: options.Csv = None,
    as_json: options.AsJson = False,
    markdown: options.Markdown = False,
) -> None:
    """Run your own script, unchanged, with other arguments for its train DataLoader.

    For example --vary workers=0,2,4 --steps 100 -- python train.py. The first trial runs the script with its own
    arguments; the others are compared with it. Ctrl-C pauses; `tournament resume ID` continues.
    """
    terminal.check_output(csv, "csv")
    options.check_format(as_json=as_json, markdown=markdown)
    if not vary:
        todo = "name arguments of the script's DataLoader to try: --vary workers=0,2,4"
        raise ConfigError("vary", "", todo)
    spec = TournamentSpec(
        own_config("", steps=steps, telemetry_hz=telemetry_hz),
        (OWN_SCRIPT,),
        (1,),
        repeats=repeats,
        until_decided=until_decided,
        seconds=time,
        baseline=UNCHANGED,
        early_stop=early_stop,
        script=_script(
            command,
            vary,
            in_place=in_place,
            allows_other_order=allow_other_order,
            allows_other_pixels=allow_other_pixels,
        ),
    )
    with terminal.open_store() as store:
        tournament_id = planning.create_tournament(store, spec, terminal.name_to_keep(name))
        how = Running(anyway=anyway, yes=yes)
        run_stored(store, tournament_id, how, ResultOutput(csv, as_json=as_json, markdown=markdown))


def _script(
    command: list[str],
    vary: list[str],
    *,
    in_place: bool,
    allows_other_order: bool,
    allows_other_pixels: bool,
) -> OwnScript:
    kept_by = Isolation(IN_PLACE) if in_place else isolation_of(os.getcwd(), command)
    varied = tuple(read_varied(text, OF_A_SCRIPT) for text in vary)
    planning.check_decoders(command, varied)
    kept = planning.keep_command(command)
    return OwnScript(
        kept,
        os.getcwd(),
        varied,
        isolation=kept_by.kind,
        layered=kept_by.layered,
        links_out=kept_by.links_out,
        open_places=kept_by.open_places,
        allows_other_order=allows_other_order,
        allows_other_pixels=allows_other_pixels,
    )
