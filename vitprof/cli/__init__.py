"""The command line. It uses the same engine and the same store as the dashboard.

Exit status: 0 done, 1 the run (or a check of doctor) failed, 2 a bad value or a standard output that
cannot be written, 130 stopped by Ctrl-C, SIGTERM or SIGHUP, 141 the reader of standard output has
ended; `watch` and `check` have their own. Errors are one line on standard error. With
`--json` standard output holds one JSON object and nothing else.
"""

import io
import sys
from typing import Any

import typer
import typer.core

from vitprof import errors, parents, program
from vitprof.cli import (
    check,
    convert,
    dashboard,
    data,
    datasets,
    doctor,
    export,
    patch,
    read,
    replay,
    run,
    runs,
    schema,
    top,
    tournament,
    watch,
)
from vitprof.cli.common import terminal
from vitprof.cli.mcp import serve_tools
from vitprof.cli.metrics import give_metrics
from vitprof.cli.retention import prune
from vitprof.cli.tournament import spelling

MEASURE = "Measure"
EXPORT = "Look and export"
SET_UP = "Set up and verify"
COMMANDS: dict[str, dict[str, Any]] = {
    MEASURE: {
        "watch": watch.watch,
        "tournament": tournament.app,
        "run": run.run,
        "demo": dashboard.demo,
        "read": read.read,
        "headroom": run.headroom,
        "check": check.check,
        "data": data.data,
        "convert": convert.convert,
    },
    EXPORT: {
        "runs": runs.runs,
        "top": top.top,
        "open": dashboard.open_dashboard,
        "export": export.export,
        "code": export.code,
        "patch": patch.patch,
        "bundle": export.bundle,
        "import": export.import_runs,
        "delete": runs.delete,
        "restore": runs.restore,
        "prune": prune,
        "metrics": give_metrics,
        "mcp": serve_tools,
    },
    SET_UP: {
        "doctor": doctor.doctor,
        "selftest": doctor.selftest,
        "datasets": datasets.app,
        "strategies": doctor.strategies,
        "schema": schema.schema,
        "replay": replay.replay,
    },
}
"""Heading in `--help` -> its commands by name, what a first day needs first. Those with commands of
their own are a `typer.Typer`."""


class InOurOrder(typer.core.TyperGroup):
    """Lists commands as `COMMANDS` does. Typer puts those with commands of their own last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in COMMANDS.values() for name in commands]


app = typer.Typer(
    cls=InOurOrder,
    help="Is my GPU starved by data loading, by which part, and what would a fix gain? Without a command: opens the "
    "dashboard. New here: `demo` shows it on recorded runs, `watch` on your own script.",
    add_completion=False,
)
for heading, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=heading)
        else:
            app.command(name, rich_help_panel=heading)(command)
app.callback(invoke_without_command=True)(dashboard.dashboard)


def main() -> None:
    """Runs the command that the arguments name, and ends the program with its exit status."""
    _prepare_streams()
    with terminal.checked_streams():
        try:
            _run()
            sys.stdout.flush()
        except terminal.OutputError as error:
            terminal.end_unprinted(error)


def _run() -> None:
    called = program.keep_call(sys.argv[0])
    terminal.signals_interrupt()
    parents.end_with_the_named_parent()
    try:
        # Outside standalone mode Typer returns the status it would have exited with, also after Ctrl-C.
        arguments = spelling.in_full(sys.argv[1:])
        status = app(args=arguments, prog_name=called, standalone_mode=False)
    except errors.ConfigError as error:
        terminal.complain(_refused(error), terminal.EXIT_BAD_VALUE)
    except errors.VitprofError as error:
        terminal.complain(errors.one_line(error), terminal.EXIT_FAILED)
    except KeyboardInterrupt:
        status = terminal.EXIT_STOPPED
    except ModuleNotFoundError as error:  # the core alone is installed
        terminal.complain(program.missing_words(error), terminal.EXIT_FAILED)
    except Exception as error:
        # Typer raises click's usage errors, in later versions its own copies of them, so go by the
        # method they share.
        if not hasattr(error, "format_message"):
            raise
        terminal.complain(_misused(error, called), terminal.EXIT_BAD_VALUE)
    if status == terminal.EXIT_STOPPED:
        terminal.complain("interrupted", terminal.EXIT_STOPPED)
    if status:
        raise SystemExit(status)


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the terminal cannot show is no failure
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None or not sys.stdout.isatty():
        terminal.out.width = terminal.PIPE_WIDTH


def _refused(error: errors.ConfigError) -> str:
    """Returns the line for a value that is not possible, with the option as it is typed."""
    option = error.field
    # these are arguments
    if option not in (terminal.RUN, terminal.ID):
        option = f"--{option.replace('_', '-')}"
    if not isinstance(error.value, bool):
        return f"{option} {error.value}: {error.allowed}"
    # a flag has no value to give
    if not error.value:
        option = option.replace("--", "--no-", 1)
    return f"{option}: {error.allowed}"


def _misused(error: Any, called: str) -> str:
    """Returns the line for a usage error of Typer's; `called`: how this program was called."""
    command = " ".join([called, *sys.argv[1:2]])
    context = getattr(error, "ctx", None)
    # None where an option lacks its value
    if context is not None:
        command = context.command_path
    usage = error.format_message().rstrip(".") or "give one of its commands"
    if not usage.endswith("?"):
        usage += "."
    return f"{usage} See '{command} --help'"
