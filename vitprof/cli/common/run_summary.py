"""A run that has ended, as a table and in words."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from vitprof import formats
from vitprof.analysis.timing.loading import shares_in_words, transform_times
from vitprof.analysis.timing.utilisation import device_memory, sm_activity
from vitprof.analysis.verdict.headroom import own_headroom, own_headroom_sentence
from vitprof.config.accelerators import is_simulated
from vitprof.program import program
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Verdict
from vitprof.store import StoredRun


def _storage(s: RunSummary) -> str:
    """Returns the size of the storage, how long making it took, and how much of it was in the page cache."""
    made = f", made in {formats.seconds(s.storage_prepare_s)}" if s.storage_prepare_s else ""
    cached = f", {formats.percent(s.page_cached_frac)} in the page cache at the start"
    return formats.size(s.storage_bytes) + made + (cached if math.isfinite(s.page_cached_frac) else "")


def _own_cost(s: RunSummary) -> str:
    """Returns the share of the run's time that vitprof's own measuring took."""
    inside = f", inside the loader about {formats.percent(s.loader_times_frac)}"
    return formats.percent(s.recording_frac) + (inside if math.isfinite(s.loader_times_frac) else "")


def show_run(run: StoredRun, console: Console) -> None:
    """Prints the main figures of a run as a table, and its verdict. Prints nothing for a run without steps."""
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
        ("SM activity", sm_activity(s, run.environment).words or formats.NOT_AVAILABLE),
        *((f"{memory.name}, peak", formats.size(memory.n_bytes)) for memory in device_memory(s)),
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
    console.print(table)
    if run.verdict is not None:
        _tell(run.verdict, console)


def show_watched(run: StoredRun, console: Console) -> None:
    """Prints the result of watching a script: the verdict's sentence, what it is based on, and things to try.

    Prints nothing for a run without steps or verdict.
    """
    s = run.summary
    if s is None or not s.n_steps or run.verdict is None:
        return
    verdict = run.verdict
    console.print(f"\nvitprof run {run.id}: {run.name}", soft_wrap=True)
    console.print(verdict.sentence, soft_wrap=True)
    based = [f"{s.n_steady_steps:,} steady steps of {s.n_steps:,}"]
    if math.isfinite(s.samples_per_s):
        interval = f" (95%: {formats.number(s.samples_per_s_low)} to {formats.number(s.samples_per_s_high)})"
        known = math.isfinite(s.samples_per_s_low)
        based.append(f"{formats.number(s.samples_per_s, 'samples/s')}{interval if known else ''}")
    if math.isfinite(verdict.idle_frac):
        low, high = formats.percent(verdict.idle_frac_low), formats.percent(verdict.idle_frac_high)
        based.append(f"idle for data {formats.percent(verdict.idle_frac)} (95%: {low} to {high})")
    if math.isfinite(s.data_wait_frac):
        based.append(f"data wait {formats.percent(s.data_wait_frac)}")
    console.print(f"  based on {', '.join(based)}", soft_wrap=True)
    if transforms := shares_in_words(transform_times(run.facts)):
        console.print(f"  transforms: {transforms}", soft_wrap=True)
    for advice in verdict.advice:
        console.print(f"  try {advice.words}. {advice.reason}", soft_wrap=True)
    if verdict.kind != "inconclusive" and (headroom := own_headroom(run.facts)) is not None:
        console.print(own_headroom_sentence(headroom), soft_wrap=True)
    console.print(f"  for its charts type {program()} and open run {run.id} under History", soft_wrap=True)


def _tell(verdict: Verdict, console: Console) -> None:
    """Prints the verdict, things to try as options of `run`, and patterns found."""
    console.print(f"\n{verdict.sentence}", soft_wrap=True)
    for advice in verdict.advice:
        options = " ".join(
            f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}"
            + ("" if isinstance(value, bool) else f" {value}")
            for name, value in advice.settings.items()
        )
        console.print(f"  try {advice.words}{f': {options}' if options else ''}. {advice.reason}", soft_wrap=True)
    for signature in verdict.signatures:
        console.print(f"  seen: {signature.sentence}", soft_wrap=True)
