"""`run`: one job from the command line, with a progress bar and its figures as a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from vitprof import formats
from vitprof.analysis.verdict.verdict import Verdict
from vitprof.cli.common import terminal
from vitprof.cli.common.options import parameter, run_signature
from vitprof.cli.common.progress import POLL_S, progress
from vitprof.cli.common.stopping import sigterm_interrupts
from vitprof.cli.common.terminal import EXIT_FAILED, EXIT_STOPPED, JSON_HELP, check_output, complain, print_json
from vitprof.cli.headroom import measure_and_tell
from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.resolve import resolve
from vitprof.errors import JobError
from vitprof.export import run_object, summary_csv, write_text
from vitprof.records import RunSummary
from vitprof.store import RunStore, StoredRun

OUTPUT_PANEL = "Output"


def run(*, as_json: bool, csv: Path | None, headroom: bool, **settings: Any) -> None:
    """Run one job and show what it measured. Without a budget: one epoch."""
    config = RunConfig(**settings)
    check_output(csv, "csv")
    if headroom:
        from vitprof.experiments.headroom import anchor_configs

        anchor_configs(config)  # what cannot be measured is said before the run
    finished = _run_job(config)
    told: dict[str, Any] = {}
    stopped = False
    if not as_json:
        _show(finished)
    if headroom and finished.status == "done":
        told["headroom"], stopped = measure_and_tell(finished, quiet=as_json)
    if as_json:
        print_json(run_object(finished) | told)
    for notice in finished.notices:
        terminal.err.print(notice, soft_wrap=True)
    if csv is not None:
        write_text(csv, summary_csv([finished]))
    if finished.status == "failed":
        complain(f"run {finished.id} failed: {finished.error}", EXIT_FAILED)
    if finished.status == "stopped":
        complain(f"run {finished.id} was stopped; what was measured until then is kept", EXIT_STOPPED)
    if stopped:
        complain("interrupted", EXIT_STOPPED)


# Typer reads a command's options off its signature; this one is made, not written down.
cast(Any, run).__signature__ = run_signature(
    parameter(
        "as_json",
        Annotated[bool, typer.Option("--json", help=JSON_HELP, rich_help_panel=OUTPUT_PANEL)],
        False,
    ),
    parameter(
        "csv",
        Annotated[
            Path | None,
            typer.Option("--csv", help="write the run's summary to this file", rich_help_panel=OUTPUT_PANEL),
        ],
        None,
    ),
    parameter(
        "headroom",
        Annotated[
            bool,
            typer.Option(
                "--headroom",
                help="measure afterwards what free data would gain: four more jobs, twice each",
                rich_help_panel="Measuring",
            ),
        ],
        False,
    ),
)


def _run_job(config: RunConfig) -> StoredRun:
    """Submits, shows progress, waits; Ctrl-C and SIGTERM stop the job and keep what was measured."""
    from vitprof.jobs.manager import JobManager

    resolve(config)  # before the store is touched, so that a bad value leaves no trace
    store = RunStore()
    manager = JobManager(store)
    try:
        sigterm_interrupts()
        run_id = manager.submit(config)
        try:
            with progress() as show:
                while not manager.wait(run_id, POLL_S):
                    show(store.run(run_id))
        except KeyboardInterrupt:
            manager.stop(run_id)
            manager.wait(run_id)
        if why := manager.unrecorded.get(run_id):
            raise JobError(f"run {run_id} failed: {why}")
        return store.run(run_id)
    finally:
        manager.shutdown()
        store.close()


def _storage(s: RunSummary) -> str:
    """Size of the storage, what making it took, and how much of it the system had in memory."""
    made = f", made in {formats.seconds(s.storage_prepare_s)}" if s.storage_prepare_s else ""
    cached = f", {formats.percent(s.page_cached_frac)} in the page cache at the start"
    return formats.size(s.storage_bytes) + made + (cached if math.isfinite(s.page_cached_frac) else "")


def _own_cost(s: RunSummary) -> str:
    """Returns what measuring took of the run's time."""
    inside = f", inside the loader about {formats.percent(s.loader_times_frac)}"
    return formats.percent(s.recording_frac) + (inside if math.isfinite(s.loader_times_frac) else "")


def _show(run: StoredRun) -> None:
    """The figures that answer the question, as a table."""
    s = run.summary
    if s is None or not s.n_steps:
        return
    simulated = " (simulated device)" if is_simulated(run.config.device) else ""
    table = Table(title=f"run {run.id}: {run.name}{simulated}", title_justify="left", show_header=False)
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
        (
            "copied first",
            f"{formats.size(s.stage_bytes)} in {formats.seconds(s.stage_s)}"
            if s.stage_s > 0
            else formats.NOT_AVAILABLE,
        ),
        ("storage", _storage(s)),
        ("cache hit rate", formats.percent(s.cache_hit_frac)),
        ("left out", f"{s.n_unreadable:,} unreadable" if s.n_unreadable else formats.NOT_AVAILABLE),
        ("test accuracy", formats.percent(s.test_accuracy)),
        ("own recording", _own_cost(s)),
    ):
        if not value.startswith(formats.NOT_AVAILABLE):
            table.add_row(label, value)
    terminal.out.print(table)
    if run.verdict is not None:
        _tell(Verdict.from_dict(run.verdict))


def _tell(verdict: Verdict) -> None:
    """The verdict, what to try as options of `run`, and patterns found."""
    terminal.out.print(f"\n{verdict.sentence}", soft_wrap=True)
    for advice in verdict.advice:
        options = " ".join(
            f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}"
            + ("" if isinstance(value, bool) else f" {value}")
            for name, value in advice.settings.items()
        )
        terminal.out.print(f"  try {advice.words}{f': {options}' if options else ''}. {advice.reason}", soft_wrap=True)
    for signature in verdict.signatures:
        terminal.out.print(f"  seen: {signature.sentence}", soft_wrap=True)
