"""The tables of a run's headline figures, and of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitprof import formats
from vitprof.analysis.compare.comparison import against, slowest
from vitprof.analysis.timing.utilisation import MEANING, device_memory, sm_activity
from vitprof.export.report.contents import Contents, Table
from vitprof.recording.columns import RunSummary
from vitprof.store import StoredRun


def headline(run: StoredRun) -> Table:
    """Returns the table of headline figures with what they mean; those that are not available are left out."""
    s = run.summary or RunSummary()
    low, high = formats.number(s.samples_per_s_low), formats.number(s.samples_per_s_high)
    interval = f" ({low} to {high})" if math.isfinite(s.samples_per_s_low) else ""
    epoch = formats.seconds(s.epoch_s)
    rows = [
        ("Samples/s", formats.number(s.samples_per_s) + interval, "steady state, with its 95% interval"),
        (
            "Time of an epoch",
            epoch if s.n_epochs_measured else f"~ {epoch}",
            "measured" if s.n_epochs_measured else "extrapolated from the throughput",
        ),
        ("Step, median", formats.seconds(s.step_ms_median / 1e3), f"of {s.n_steady_steps:,} steady steps"),
        ("Step, 95% below", formats.seconds(s.step_ms_p95 / 1e3), ""),
        ("Device idle", formats.percent(s.device_idle_frac), "share of the time between steps without compute"),
        ("Idle for data", formats.percent(s.exposed_wait_frac), "the part of it in which the loop waited for data"),
        ("Idle for the copy", formats.percent(s.exposed_h2d_frac), "the part of it spent on the copy to the device"),
        ("Data wait", formats.percent(s.data_wait_frac), "share of the time that the loop was blocked in next(loader)"),
        ("GPU-util", formats.percent(s.gpu_util_pct_mean / 100), "mean of NVML's utilisation while training"),
        ("SM activity", sm_activity(s, run.environment).words or formats.NOT_AVAILABLE, MEANING),
        *((f"{memory.name}, peak", formats.size(memory.n_bytes), memory.meaning) for memory in device_memory(s)),
        ("Memory, peak", formats.size(s.rss_peak_bytes), "resident, of the job's processes"),
        ("Preparing", formats.seconds(s.prepare_s), "data set and storage, not part of the epoch"),
        (
            "Copied first",
            formats.seconds(s.stage_s if s.stage_s > 0 else None),
            "to RAM disk or local disk, not part of the epoch",
        ),
        ("First batch", formats.seconds(s.first_batch_s), "wait for it, worker start included"),
        ("Change of epochs", formats.seconds(s.epoch_restart_s), "median wait for the first batch of a later epoch"),
        ("Whole job", formats.seconds(s.wall_s), "from its start to its end"),
        ("Training loss", formats.number(s.loss_last), "of the last step"),
        ("Accuracy", formats.percent(s.test_accuracy), "on the test set, at the last evaluation"),
        ("Cost of recording", formats.percent(s.recording_frac), "share of the time that vitprof's own recording took"),
    ]
    known = [row for row in rows if formats.NOT_AVAILABLE not in row[1]]
    note = "" if run.summary else "This run has no summary: it did not finish."
    return Table("Figures", ("figure", "value", "meaning"), known, note)


def comparison(found: Sequence[Contents]) -> Table:
    """Returns the table that compares runs, with one row for each."""
    rows: list[tuple[str, ...]] = []
    summaries = [c.run.summary for c in found]
    for one, gain in zip(found, against(summaries, slowest(summaries)), strict=True):
        s = one.run.summary or RunSummary()
        half = (s.samples_per_s_high - s.samples_per_s_low) / 2
        spread = f" ± {formats.percent(half / s.samples_per_s)}" if math.isfinite(half) else ""
        kind = one.verdict.kind if one.verdict else one.run.status
        speed_up = f"{gain.speed_up:.2f}x{f', {gain.relation}' if gain.relation in ('equal', 'undecided') else ''}"
        rows.append(
            (
                f"{one.run.id}: {one.run.name}",
                kind + (", simulated" if one.simulated else ""),
                formats.number(s.samples_per_s) + spread,
                speed_up if math.isfinite(gain.speed_up) else formats.NOT_AVAILABLE,
                ("" if s.n_epochs_measured else "~ ") + formats.seconds(s.epoch_s),
                formats.percent(s.data_wait_frac),
                formats.percent(s.device_idle_frac),
                formats.size(s.gpu_mem_peak_bytes),
                formats.size(s.rss_peak_bytes),
            )
        )
    header = ("run", "verdict", "samples/s", "speed-up", "epoch", "data wait", "idle", "GPU memory", "memory")
    told = [at for at, name in enumerate(header) if name != "GPU memory" or _known(rows, at)]
    note = (
        "Speed-up: over the slowest run; equal where it is surely within 5%, undecided where 95% intervals overlap. "
        "~: extrapolated from the throughput."
    )
    return Table("Runs", tuple(header[at] for at in told), [tuple(row[at] for at in told) for row in rows], note)


def _known(rows: Sequence[tuple[str, ...]], at: int) -> bool:
    """Returns whether any run has the figure in column `at`: without a GPU none has its memory."""
    return any(row[at] != formats.NOT_AVAILABLE for row in rows)
