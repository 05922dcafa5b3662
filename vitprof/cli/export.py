"""What leaves the house: `export` to files of other tools, `bundle` and `import` for another store, `code` a script."""

import dataclasses
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from vitprof import formats, names
from vitprof.cli.common import options, terminal
from vitprof.config import GROUPS, RunConfig
from vitprof.errors import ConfigError
from vitprof.experiments import answers
from vitprof.experiments.headroom_runs import find_headroom
from vitprof.export import new_file, tables, write_text
from vitprof.export.code import script
from vitprof.program import program
from vitprof.store import RunStore, StoredRun
from vitprof.store.nodes import PossiblePart

Write = Callable[[RunStore, list[StoredRun], BinaryIO], object]


def _html(store: RunStore, runs: list[StoredRun], file: BinaryIO) -> None:
    from vitprof.export.report import html_report

    headrooms = {}
    proofs = {}
    for run in runs:
        headroom = find_headroom(store, run)
        if headroom is not None:
            headrooms[run.id] = headroom
        if run.verdict is not None:
            proofs[run.id] = answers.proofs_of(store, run, run.verdict)
    file.write(html_report(store, runs, headrooms=headrooms, proofs=proofs).encode())


def _trace(
    store: RunStore,
    runs: list[StoredRun],
    file: BinaryIO,
    *,
    packed: bool = False,
    whole: bool = False,
) -> str:
    """Writes the trace and returns in words which runs it has only the first steps of."""
    # plotly comes with it
    from vitprof.export.trace import write_trace, write_trace_gz

    write = write_trace_gz if packed else write_trace
    return write(store, runs, file, whole=whole)


def _summary_csv(store: RunStore, runs: list[StoredRun], file: BinaryIO) -> None:
    file.write(tables.summary_csv(runs, answers.answers_of(store, runs)).encode())


def _summary_parquet(store: RunStore, runs: list[StoredRun], file: BinaryIO) -> None:
    file.write(tables.summary_parquet(runs, answers.answers_of(store, runs)))


def _json(store: RunStore, runs: list[StoredRun], file: BinaryIO, *, series: bool = True) -> None:
    found = answers.answers_of(store, runs)
    tables.write_runs_json(store, runs, file, series=series, answers=found)


FORMATS: dict[str, Write] = {
    "csv": _summary_csv,
    "steps-csv": tables.write_steps_csv,
    "parquet": _summary_parquet,
    "steps-parquet": tables.write_steps_parquet,
    "json": partial(_json, series=False),
    "steps-json": _json,
    "html": _html,
    "trace": _trace,
}
BINARY_FORMATS = ("parquet", "steps-parquet")
OUTPUT_HELP = "file to write; text goes to stdout if not given"
STEPS_HELP = "for csv, parquet and json: every step instead of one row for each run"
BUNDLE = typer.Argument(help="a .vitprof file")
ALL_STEPS_HELP = "for trace: every step of a long run instead of the first 50,000"


class _Terminal(io.BytesIO):
    """Standard output on a terminal. What is written to it is made harmless, see `vitprof.names`."""

    def write(self, data: Any) -> int:
        """Prints a piece of UTF-8 text, which must end with a whole character."""
        return sys.stdout.buffer.write(names.harmless(bytes(data).decode()).encode())


FORMAT_HELP = f"{', '.join(FORMATS)}; if not given, what the name of the file says, else csv"


def _format_of(output: Path | None) -> str:
    """Returns the format that a file's name asks for: "json" for x.json; "csv" without a file, or
    where its name has no end."""
    if output is None or "." not in output.name:
        return "csv"
    suffix = output.name.removesuffix(".gz").rpartition(".")[2].lower()
    if suffix not in OF_SUFFIX:
        known = ", ".join(f".{name}" for name in OF_SUFFIX)
        why = f"which format is not clear from its name; give --format, or a name that ends in {known}"
        raise ConfigError("output", output.name, why)
    return OF_SUFFIX[suffix]


OF_SUFFIX = {
    "csv": "csv",
    "json": "json",
    "parquet": "parquet",
    "html": "html",
    "trace": "trace",
}
"""End of a file's name -> the format that is written into it."""


def export(
    run_ids: Annotated[list[int], terminal.run_id("ids, as `runs` lists them")],
    kind: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help=FORMAT_HELP, show_default=False),
    ] = "",
    output: Annotated[Path | None, typer.Option("--output", help=OUTPUT_HELP)] = None,
    steps: Annotated[bool, typer.Option("--steps", help=STEPS_HELP)] = False,
    all_steps: Annotated[bool, typer.Option("--all-steps", help=ALL_STEPS_HELP)] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="the same as --format csv --output FILE")
    ] = None,
) -> None:
    """Write runs to a file: a table, JSON, a report, a trace for ui.perfetto.dev."""
    if not kind:
        kind = "csv" if csv is not None else _format_of(output)
    if csv is not None:
        if output is not None or kind not in ("csv", "steps-csv"):
            raise ConfigError(
                "csv", str(csv), "it names file and format; leave out --output and --format"
            )
        output = csv
    if steps and f"steps-{kind}" in FORMATS:
        kind = f"steps-{kind}"
    if steps and kind in FORMATS and not kind.startswith("steps-"):
        raise ConfigError(
            "steps", True, f"it goes with csv, parquet and json; leave it out for {kind}"
        )
    if kind not in FORMATS:
        raise ConfigError("format", kind, f"choose one of {', '.join(FORMATS)}")
    if all_steps and kind != "trace":
        raise ConfigError("all_steps", True, f"it goes with --format trace; {kind} is never cut")
    if output is None and kind in BINARY_FORMATS:
        raise ConfigError(
            "format", kind, "a terminal cannot show it; give --output and a file name"
        )
    terminal.check_output(output, "csv" if csv is not None else "output")
    terminal.check_rate()
    write = FORMATS[kind]
    if kind == "trace":
        packed = output is not None and output.suffix == ".gz"
        write = partial(_trace, whole=all_steps, packed=packed)
    with terminal.open_store() as store:
        runs = [store.run(number) for number in run_ids]
        if output is None:
            cut = write(store, runs, _Terminal() if sys.stdout.isatty() else sys.stdout.buffer)
            # raises here, where it is handled, if it cannot be written
            sys.stdout.flush()
        else:
            with new_file(output) as file:
                cut = write(store, runs, file)
    if kind == "trace" and cut:
        terminal.remark(f"the trace has of {cut}; --all-steps writes them all")


def bundle(
    run_ids: Annotated[list[int], terminal.run_id("ids, as `runs` lists them")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="file to write, such as runs.vitprof")
    ],
) -> None:
    """Write runs, with everything recorded about them, to one file that another machine can import."""
    from vitprof.export.bundle import write_bundle

    terminal.check_output(output)
    with terminal.open_store() as store:
        write_bundle(store, run_ids, output)
    size = formats.size(output.stat().st_size)
    terminal.out.print(f"{output}: {size}; import it with {program()} import {output}")


JOIN_HELP = "join runs that seem to be of one job, though no id says so; without this you are asked"


def import_runs(
    file: Annotated[Path, BUNDLE],
    as_json: terminal.AsJson = False,
    join: Annotated[bool, typer.Option("--join", help=JOIN_HELP)] = False,
) -> None:
    """Import the runs of a file that `bundle`, or Export on the History page, wrote on another machine."""
    from vitprof.export.bundle import import_bundle

    with terminal.open_store() as store:
        came = import_bundle(store, file, join_unsure=join)
        if as_json:
            terminal.print_json({"runs": came.runs})
        else:
            terminal.out.print(came.sentence)
        for part in came.possible:
            _ask_to_join(store, part, file)


def _ask_to_join(store: RunStore, part: PossiblePart, file: Path) -> None:
    """Asks whether two runs are of one job, and joins them if so; without a terminal it says what to
    type.
    """
    from vitprof.export.bundle import join_imported

    terminal.remark(part.sentence)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        terminal.remark(f"they stay apart; to join them: {program()} import {file} --join")
        return
    if typer.confirm("Join them?", err=True):
        joined = join_imported(store, [part.run_id], unsure=True)
        terminal.show(joined.line, console=terminal.err)


PANELS = ("Strategy and its parts", "Loading", "Drive and cache", "What to train")
"""The groups of settings that a script depends on."""
NOT_IN_A_SCRIPT = (
    "n_images",
    "page_cache",
    "slow_drive",
    "slow_mb_s",
    "slow_latency_ms",
    "skip_unreadable",
)
"""Settings in these groups that a script does not depend on: they are about vitprof's own data and measuring."""


RUN_HELP = "id of the run whose strategy and settings to take, as `runs` lists it"


@options.takes(
    options.keyword("run", Annotated[int | None, terminal.run_id(RUN_HELP)]),
    *(
        options.option(name, panel)
        for panel in PANELS
        for name in GROUPS[panel]
        if name not in NOT_IN_A_SCRIPT
    ),
    options.parameter("output", Path | None, None, "write the script to this new file instead"),
    options.parameter("force", bool, False, "replace the file if there is one"),
)
def code(*, run: int | None, output: Path | None, force: bool, **settings: Any) -> None:
    """Print a strategy as a script for your own training: that of a run, or the one that the options describe."""
    terminal.check_output(output)
    if force and output is None:
        raise ConfigError("force", True, "it goes with --output")
    # perhaps the training script that it is taken for
    if output is not None and output.is_file() and not force:
        raise ConfigError(
            "output",
            str(output),
            "there is such a file; give another name, or --force to replace it",
        )
    chosen = {
        name: value
        for name, value in settings.items()
        if value != options.CONFIG_FIELDS[name].default
    }
    throughput = ""
    if run is None:
        config = RunConfig(**chosen)
    else:
        with terminal.open_store() as store:
            stored = store.run(run)
        config = dataclasses.replace(stored.config, **chosen)
        speed = stored.summary.samples_per_s if stored.summary is not None else None
        if not chosen and speed is not None and formats.number(speed) != formats.NOT_AVAILABLE:
            throughput = formats.number(speed, "samples/s while training")
    text = script(config, throughput, run if not chosen else None)
    if output is None:
        terminal.print_text(text)
    else:
        write_text(output, text)
