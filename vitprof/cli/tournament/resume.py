"""`tournament resume`: continues a tournament, of jobs or of a script; shows one again that is done."""

from typing import Annotated

import typer

from vitprof.cli.common import terminal
from vitprof.cli.tournament import options
from vitprof.cli.tournament.running import ResultOutput, Running, run_stored
from vitprof.config.own_script import OwnScript
from vitprof.errors import ConfigError
from vitprof.experiments.tournament import planning
from vitprof.masking import masked_command
from vitprof.store import tournaments

COMMAND_HELP = "the script's whole command, after --, where its secrets were not stored"
MORE_ROUNDS_HELP = "run this many more rounds of every setting"
TAKE_OVER_HELP = "take it over from a machine or container that is gone"
WHOLE = "give a whole number"


def resume(
    context: typer.Context,
    tournament_id: Annotated[
        int,
        typer.Argument(
            metavar=terminal.ID,
            help="number of the tournament, as `tournament --list` shows it",
            parser=terminal.reader(terminal.ID, int, WHOLE),
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help=COMMAND_HELP, metavar="[-- COMMAND...]", show_default=False),
    ] = None,
    more_rounds: Annotated[
        int | None,
        typer.Option(
            help=MORE_ROUNDS_HELP,
            metavar="INTEGER",
            parser=terminal.reader("more_rounds", int, WHOLE),
        ),
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help=TAKE_OVER_HELP)] = False,
    yes: options.Yes = False,
    anyway: options.Anyway = False,
    on: options.On = "",
    nodes: options.Nodes = None,
    slurm: options.Slurm = None,
    csv: options.Csv = None,
    as_json: options.AsJson = False,
    markdown: options.Markdown = False,
) -> None:
    """Continue a tournament, also after a restart of the machine. One that is done is shown again.

    It keeps its settings. A run that did not finish is run again.
    """
    terminal.check_output(csv, "csv")
    options.check_format(as_json=as_json, markdown=markdown)
    cluster = options.read_cluster(on, nodes, slurm)
    if cluster is not None:
        options.refuse_on_cluster(context)
    with terminal.open_store() as store:
        stored = tournaments.tournament(store, tournament_id)
        script = stored.spec.script
        if cluster is not None and script is not None:
            why = "a script of your own runs on this machine only; leave it out"
            raise ConfigError("on", on, why)
        _check_same_command(script, command or [])
        if script is not None and (stored.status != "done" or more_rounds is not None):
            planning.check_links(script)
        if take_over:
            tournaments.release(store, tournament_id)
        if more_rounds is not None:
            tournaments.add_rounds(store, tournament_id, more_rounds)
        run_stored(
            store,
            tournament_id,
            Running(anyway=anyway, yes=yes, cluster=cluster),
            ResultOutput(csv, as_json=as_json, markdown=markdown),
        )


def _check_same_command(script: OwnScript | None, command: list[str]) -> None:
    """Raises `ConfigError` where a command was given that is not the script's, or is needed and missing."""
    if command and (script is None or planning.keep_command(command) != script.command):
        why = "it is not that of the resumed tournament"
        raise ConfigError("command", " ".join(masked_command(command)), why)
    if script is not None:
        planning.command_of(script)
