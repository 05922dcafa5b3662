"""`data`: says what the Dataset of a user's own script is, after the script's first step."""

from typing import Annotated

import typer

from vitprof import errors, names
from vitprof.cli.common import terminal
from vitprof.cli.watch import COMMAND_HELP, EXIT_NOT_FOUND
from vitprof.jobs.command import CommandRunner
from vitprof.recording import codec


def data(
    command: Annotated[
        list[str], typer.Argument(help=COMMAND_HELP, metavar="-- COMMAND...", show_default=False)
    ],
    as_json: terminal.AsJson = False,
) -> None:
    """Say what the Dataset of your own script is. The script ends after its first step of training.

    What it writes until then, such as logs, caches and downloads, stays.
    """
    from vitprof.experiments.script_data.first_step import begin_words, dataset_of

    with terminal.signals_relayed() as signals:
        runners: list[CommandRunner] = []

        def started(runner: CommandRunner) -> None:
            runners.append(runner)
            signals.to(runner.signalled)
            terminal.show(begin_words(command), console=terminal.err)

        try:
            facts = dataset_of(command, started)
        except errors.JobError as error:
            # the command was not started
            status = EXIT_NOT_FOUND
            if runners:
                status = terminal.EXIT_FAILED
            terminal.complain(errors.one_line(error), status)
    if as_json:
        terminal.print_json({"dataset": codec.to_plain(facts)})
        return
    # Names of files and of values are in them.
    terminal.show(*map(names.in_one_line, facts.sentences()))
