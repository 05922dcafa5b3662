"""The command line, on the dashboard's engine and store. Exit status: 0 done, 1 the run (or a check of doctor) failed,
2 a bad value, 130 stopped by Ctrl-C, SIGTERM or SIGHUP; `watch` and `check` have their own. Errors are one line on
standard error. With `--json` standard output holds one JSON object and nothing else.
"""

import io
import sys

import typer

from vitprof import errors, program
from vitprof.cli import (
    check,
    convert,
    dashboard,
    data,
    datasets,
    doctor,
    export,
    run,
    runs,
    schema,
    tournament,
    watch,
)
from vitprof.cli.common import terminal
from vitprof.cli.metrics import give_metrics
from vitprof.cli.retention import prune

app = typer.Typer(
    help="Is my GPU starved by data loading, by which part, and what would a fix gain? Without a command: opens the "
    "dashboard.",
    add_completion=False,
)
for command in (
    *(
        run.run,
        watch.watch,
        data.data,
        convert.convert,
        check.check,
        run.headroom,
        run.predict,
        doctor.strategies,
        runs.runs,
    ),
    *(
        export.export,
        runs.delete,
        runs.restore,
        prune,
        export.bundle,
        export.code,
        dashboard.demo,
        schema.schema,
    ),
    *(doctor.doctor, doctor.selftest),
):
    app.command()(command)
app.add_typer(datasets.app, name="datasets")
app.callback(invoke_without_command=True)(dashboard.dashboard)
app.command("open")(dashboard.open_dashboard)
app.command("import")(export.import_runs)
app.command("metrics")(give_metrics)
app.command("tournament")(tournament.run_tournament)


def main() -> None:
    terminal.open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the terminal cannot show is no failure
            stream.reconfigure(errors="backslashreplace")
    if not sys.stdout.isatty():
        terminal.out.width = terminal.PIPE_WIDTH
    called = program.keep_call(sys.argv[0])
    terminal.signals_interrupt()
    try:
        # Outside standalone mode Typer returns the status it would have exited with, also after Ctrl-C.
        status = app(args=sys.argv[1:], prog_name=called, standalone_mode=False)
    except errors.ConfigError as error:
        option = (
            terminal.RUN if error.field == terminal.RUN else "--" + error.field.replace("_", "-")
        )
        if isinstance(error.value, bool):  # a flag has no value to give
            option = option if error.value else option.replace("--", "--no-", 1)
            terminal.complain(f"{option}: {error.allowed}", terminal.EXIT_BAD_VALUE)
        terminal.complain(f"{option} {error.value}: {error.allowed}", terminal.EXIT_BAD_VALUE)
    except errors.VitprofError as error:
        terminal.complain(errors.one_line(error), terminal.EXIT_FAILED)
    except KeyboardInterrupt:
        status = terminal.EXIT_STOPPED
    except ModuleNotFoundError as error:  # the core alone is installed
        terminal.complain(program.missing_words(error), terminal.EXIT_FAILED)
    except Exception as error:
        # Typer raises click's usage errors, in later versions its own copies of them, so go by the method they share.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        # None where an option lacks its value
        context = getattr(error, "ctx", None)
        command = (
            context.command_path if context is not None else " ".join([called, *sys.argv[1:2]])
        )
        usage = message().rstrip(".") or "give one of its commands"
        stop = "" if usage.endswith("?") else "."
        terminal.complain(f"{usage}{stop} See '{command} --help'", terminal.EXIT_BAD_VALUE)
    if status == terminal.EXIT_STOPPED:
        terminal.complain("interrupted", terminal.EXIT_STOPPED)
    if status:
        raise SystemExit(status)
