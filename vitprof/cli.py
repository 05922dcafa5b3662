"""The command line: the same engine and the same store as the dashboard.

Exit status: 0 done, 1 the run (or a check of doctor) failed, 2 a bad value, 130 stopped by Ctrl-C. Errors are one
line on standard error. With `--json` standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vitprof import formats
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.export import run_object, steps_csv, summary_csv, write_text
from vitprof.records import SCHEMA_VERSION, RunConfig
from vitprof.store import RunStore, StoredRun
from vitprof.strategies import STRATEGIES, resolve

RUN = "RUN"
EXIT_FAILED, EXIT_BAD_VALUE, EXIT_STOPPED = 1, 2, 130
POLL_S = 0.1
PIPE_WIDTH = 400
"""Columns of a table that goes to a file or another program: one line for each run, whatever its name."""

app = typer.Typer(
    help="Train a ViT for a short while under a chosen loading strategy and see where the time goes.",
    add_completion=False,
)
# Names of runs and paths are text, whatever brackets and colons they hold.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)

HELP = {f.name: f.metadata["doc"] for f in dataclasses.fields(RunConfig)}
DEFAULT: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(RunConfig)}
NUMBERS: dict[str, tuple[type, str, str]] = {
    "int": (int, "INTEGER", "give a whole number"),
    "float": (float, "NUMBER", "give a number"),
}
"""The type of a field of `RunConfig`, without " | None", to what reads it, what help calls it, what is allowed."""
KIND = {f.name: NUMBERS.get(str(f.type).removesuffix(" | None")) for f in dataclasses.fields(RunConfig)}


def _reader(name: str, kind: type, allowed: str) -> Callable[[str], Any]:
    """What reads a number: Typer's own message does not name the value in every version."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(name, text, allowed) from None

    return read


def _option(field: str, *names: str) -> Any:
    number = KIND[field]
    if number is None:
        return typer.Option(*names, help=HELP[field])
    kind, metavar, allowed = number
    return typer.Option(*names, help=HELP[field], metavar=metavar, parser=_reader(field, kind, allowed))


def _run_id(help_text: str) -> Any:
    return typer.Argument(
        metavar=RUN, help=help_text, parser=_reader(RUN, int, "give a whole number, as `runs` lists them")
    )


AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


@app.command()
def run(
    strategy: Annotated[str, _option("strategy")] = DEFAULT["strategy"],
    batch_size: Annotated[int, _option("batch_size")] = DEFAULT["batch_size"],
    dataset: Annotated[str, _option("dataset")] = DEFAULT["dataset"],
    model: Annotated[str, _option("model")] = DEFAULT["model"],
    epochs: Annotated[int | None, _option("epochs")] = None,
    steps: Annotated[int | None, _option("steps")] = None,
    seconds: Annotated[float | None, _option("seconds")] = None,
    device: Annotated[str, _option("device")] = DEFAULT["device"],
    precision: Annotated[str, _option("precision")] = DEFAULT["precision"],
    workers: Annotated[int | None, _option("workers")] = None,
    prefetch_factor: Annotated[int | None, _option("prefetch_factor")] = None,
    pin_memory: Annotated[bool | None, _option("pin_memory", "--pin-memory/--no-pin-memory")] = None,
    persistent_workers: Annotated[
        bool | None, _option("persistent_workers", "--persistent-workers/--no-persistent-workers")
    ] = None,
    image_size: Annotated[int | None, _option("image_size")] = None,
    lr: Annotated[float | None, _option("lr")] = None,
    compile_: Annotated[bool, _option("compile", "--compile")] = DEFAULT["compile"],
    warmup_steps: Annotated[int, _option("warmup_steps")] = DEFAULT["warmup_steps"],
    evaluate: Annotated[bool, _option("evaluate", "--evaluate/--no-evaluate")] = DEFAULT["evaluate"],
    loader_only: Annotated[bool, _option("loader_only", "--loader-only")] = DEFAULT["loader_only"],
    threads: Annotated[int, _option("threads")] = DEFAULT["threads"],
    isolation: Annotated[str, _option("isolation")] = DEFAULT["isolation"],
    telemetry_hz: Annotated[float, _option("telemetry_hz")] = DEFAULT["telemetry_hz"],
    seed: Annotated[int, _option("seed")] = DEFAULT["seed"],
    name: Annotated[str, _option("name")] = DEFAULT["name"],
    as_json: AsJson = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="write the run's summary to this file")] = None,
) -> None:
    """Run one job and show what it measured. Without a budget: one epoch."""
    options = dict(locals())
    config = RunConfig(**{k: v for k, v in options.items() if k in HELP}, compile=compile_)
    _check_csv(csv)
    finished = _run_job(config)
    if as_json:
        _print_json(run_object(finished))
    else:
        _show(finished)
    for notice in finished.notices:
        err.print(notice, soft_wrap=True)
    if csv is not None:
        write_text(csv, summary_csv([finished]))
    if finished.status == "failed":
        _complain(f"run {finished.id} failed: {finished.error}", EXIT_FAILED)
    if finished.status == "stopped":
        _complain(f"run {finished.id} was stopped; what was measured until then is kept", EXIT_STOPPED)


def _run_job(config: RunConfig) -> StoredRun:
    """Submit, show progress, wait; Ctrl-C and SIGTERM stop the job and keep what was measured."""
    from vitprof.jobs.manager import JobManager

    resolve(config)  # before the store is touched, so that a bad value leaves no trace
    store = RunStore()
    manager = JobManager(store)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        run_id = manager.submit(config)
        try:
            with _progress() as show:
                while not manager.wait(run_id, POLL_S):
                    show(store.run(run_id))
        except KeyboardInterrupt:
            manager.stop(run_id)
            manager.wait(run_id)
        return store.run(run_id)
    finally:
        manager.shutdown()
        store.close()


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """A function that shows a run's progress: on a terminal as a bar, else not at all."""
    if not (sys.stderr.isatty() and err.is_terminal):  # Rich alone believes FORCE_COLOR, in a pipe too
        yield lambda run: None
        return
    layout = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*layout, console=err, transient=True) as bar:
        task = bar.add_task("queued", total=None)
        stage = ""

        def show(run: StoredRun) -> None:
            nonlocal stage
            if run.stage != stage:
                stage = run.stage
                bar.reset(task)
            bar.update(
                task,
                description=run.message or run.stage or run.status,
                total=None if run.progress is None else 1.0,
                completed=run.progress or 0.0,
            )

        yield show


def _show(run: StoredRun) -> None:
    """The figures that answer the question, as a table."""
    s = run.summary
    if s is None or not s.n_steps:
        return
    table = Table(title=f"run {run.id}: {run.name}", title_justify="left", show_header=False)
    interval = (
        f"  (95%: {formats.number(s.samples_per_s_low)} to {formats.number(s.samples_per_s_high)}, "
        f"n = {s.n_steady_steps} steps)"
        if math.isfinite(s.samples_per_s_low)
        else f"  (n = {s.n_steady_steps} steps)"
    )
    measured = f"  ({s.n_epochs_measured} measured)" if s.n_epochs_measured else "  (extrapolated)"
    for label, value in (
        ("throughput", formats.number(s.samples_per_s, "samples/s") + interval),
        ("epoch", formats.seconds(s.epoch_s) + measured),
        ("step", f"{formats.number(s.step_ms_median, 'ms')} median, {formats.number(s.step_ms_p95, 'ms')} p95"),
        ("data wait", formats.percent(s.data_wait_frac)),
        ("device idle", formats.percent(s.device_idle_frac)),
        ("GPU-util", formats.percent(s.gpu_util_pct_mean / 100)),
        ("GPU memory, peak", formats.size(s.gpu_mem_peak_bytes)),
        ("memory, peak", formats.size(s.rss_peak_bytes)),
        ("CPU", formats.seconds(s.cpu_s_per_sample) + " a sample"),
        ("loss", f"{formats.number(s.loss_first)} first, {formats.number(s.loss_last)} last"),
        ("test accuracy", formats.percent(s.test_accuracy)),
    ):
        if not value.startswith(formats.NOT_AVAILABLE):
            table.add_row(label, value)
    out.print(table)


@app.command()
def strategies(as_json: AsJson = False) -> None:
    """List the loading strategies."""
    if as_json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "strategies": [dataclasses.asdict(s) for s in STRATEGIES.values()],
            }
        )
        return
    table = Table("strategy", "what it does", "takes")
    for s in STRATEGIES.values():
        table.add_row(s.name, s.what, ", ".join(f"{k}={v}" for k, v in s.defaults.items()))
    out.print(table)


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List the runs in the store, newest first."""
    from vitprof.jobs.recording import settle_interrupted

    with _store() as store:
        settle_interrupted(store)
        found = store.runs()
    if as_json:
        _print_json({"schema_version": SCHEMA_VERSION, "runs": [run_object(r) for r in found]})
        return
    if not found:
        out.print("no runs yet: python -m vitprof run --strategy memory --steps 50 makes one")
        return
    table = Table("run", "name", "status", "samples/s", "data wait", "device idle", "made")
    for r in found:
        s = r.summary
        figures = (
            (formats.number(s.samples_per_s), formats.percent(s.data_wait_frac), formats.percent(s.device_idle_frac))
            if s
            else ("", "", "")
        )
        table.add_row(str(r.id), r.name, r.status, *figures, r.created_utc)
    out.print(table)


@app.command()
def export(
    run_ids: Annotated[list[int], _run_id("ids, as `runs` lists them")],
    csv: Annotated[Path, typer.Option("--csv", help="file to write")],
    steps: Annotated[bool, typer.Option("--steps", help="one row for each step instead of one for each run")] = False,
) -> None:
    """Write runs to a CSV file."""
    _check_csv(csv)
    with _store() as store:
        found = [store.run(run_id) for run_id in run_ids]
        write_text(csv, steps_csv(store, found) if steps else summary_csv(found))


@app.command()
def delete(run_id: Annotated[int, _run_id("id, as `runs` lists it")]) -> None:
    """Delete a run with its steps and telemetry."""
    with _store() as store:
        store.mark_interrupted()
        store.delete(run_id)


@app.command()
def doctor() -> None:
    """Check versions, GPU, NVML, shared memory, disk and database, with a verdict for each."""
    from vitprof.doctor import examine

    table = Table("what", "found", "verdict")
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    checks = list(examine())
    for check in checks:
        verdict = Text.assemble((check.verdict, colours[check.verdict]), f": {check.meaning}" if check.meaning else "")
        table.add_row(check.what, check.found, verdict)
    out.print(table)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def _store() -> Iterator[RunStore]:
    with contextlib.closing(RunStore()) as store:
        yield store


def _check_csv(path: Path | None) -> None:
    """Say that a file cannot be written before the work is done, not after."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError("csv", str(path), "it is a directory; give a file")
    if path.exists() and not path.is_file():  # /dev/null, /dev/stdout: writing renames a new file to the name
        raise ConfigError("csv", str(path), "it is a device or a pipe; give a file")
    if not path.parent.is_dir():
        raise ConfigError("csv", str(path), f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError("csv", str(path), f"{path.parent} cannot be written to")


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()  # a reader that has gone shows here, where Typer deals with it


def _complain(message: str, status: int) -> NoReturn:
    print("vitprof:", *message.split(), file=sys.stderr)  # noqa: T201
    raise SystemExit(status)


def main() -> None:
    """Run the command line; every error becomes one line on standard error and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no failure
    if not sys.stdout.isatty():
        out.width = PIPE_WIDTH
    try:
        # Outside standalone mode Typer returns the status it would have exited with, also after Ctrl-C.
        status = app(args=sys.argv[1:] or ["--help"], prog_name="python -m vitprof", standalone_mode=False)
    except ConfigError as error:
        option = RUN if error.field == RUN else "--" + error.field.replace("_", "-")
        _complain(f"{option} {error.value}: {error.allowed}", EXIT_BAD_VALUE)
    except VitprofError as error:
        _complain(one_line(error), EXIT_FAILED)
    except KeyboardInterrupt:
        status = EXIT_STOPPED
    except Exception as error:
        # Typer carries click's usage errors, its own copy of them in later versions: known by what they offer.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _complain(message(), EXIT_BAD_VALUE)
    if status == EXIT_STOPPED:
        _complain("interrupted", EXIT_STOPPED)
    if status:
        raise SystemExit(status)
