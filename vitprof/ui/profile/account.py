"""Where a run's time went apart from the steady state, and what recording it cost."""

from __future__ import annotations

import math

import streamlit as st

from vitprof import formats
from vitprof.recording.columns import RunSummary
from vitprof.store import StoredRun
from vitprof.ui.findings import device_account
from vitprof.ui.texts import guarded


@guarded
def draw_recording_cost(run: StoredRun) -> None:
    """Draws one line: the share of the run's time that vitprof's own recording took, at most."""
    _, cost = device_account(run.id)
    if not math.isfinite(cost.frac):
        st.caption("We cannot say what recording cost this run: that needs two steady steps in a row.")
        return
    idle = ""
    if math.isfinite(cost.exposed_frac) and not run.config.loader_only:
        idle = f" and kept the device idle {formats.percent(cost.exposed_frac)} of it"
    st.caption(
        f":material/speed: vitprof's own recording took at most {formats.percent(cost.frac)} of this run's time "
        f"({formats.seconds(cost.s_per_step)} a step, n = {cost.n:,}){idle}. {_inside_the_loader(run)}",
        help="Everything that the loop did between the launch of a step and the request for the next batch. Measuring "
        "inside the loader is added: the number of clock readings times what one took when the run began. The setting "
        "*Measure inside the loader* switches that off.",
    )


def _inside_the_loader(run: StoredRun) -> str:
    share = run.summary.loader_times_frac if run.summary else math.nan
    if not math.isfinite(share):
        return ""
    if not run.config.loader_times:
        return "Nothing was measured inside the loader."
    where = ", in its workers" if run.config.workers else ""
    return f"Measuring inside the loader took about {formats.percent(share)}{where}."


@guarded
def draw_account(run: StoredRun) -> None:
    """Draws where the run's time went apart from the steady state, and other figures of the whole run."""
    s = run.summary
    if s is None or not s.n_steps:
        return
    rows = [row for row in [*_times(s), *_others(s)] if row[1] != formats.NOT_AVAILABLE]
    with st.expander(f"The whole run: {formats.seconds(s.wall_s)}", icon=":material/timer:"):
        st.dataframe(
            {
                "what": [r[0] for r in rows],
                "how much": [r[1] for r in rows],
                "meaning": [r[2] for r in rows],
            },
            hide_index=True,
            width="stretch",
            height="content",
        )


def _times(s: RunSummary) -> list[tuple[str, str, str]]:
    epoch_from = f"Median of {s.n_epochs_measured} measured." if s.n_epochs_measured else "Calculated from samples/s."
    copied = f"To RAM disk or local disk: {formats.size(s.stage_bytes)}."
    rows = (
        ("Preparing the data", s.prepare_s, "Making or checking data set and storage, opening it, filling its cache."),
        ("Copying the data", s.stage_s or math.nan, copied),
        ("Start-up", s.startup_s, "Starting the process, importing PyTorch, building model and loader."),
        ("First batch", s.first_batch_s, "Wait for the very first batch, worker start included."),
        ("Epoch restart", s.epoch_restart_s, "Median wait for the first batch of each later epoch."),
        ("A step, median", s.step_ms_median / 1e3, f"Steady state, n = {s.n_steady_steps:,} steps."),
        ("A step, 95th percentile", s.step_ms_p95 / 1e3, "95% of the steady steps take less."),
        ("An epoch", s.epoch_s, epoch_from),
        ("Evaluation", s.evaluate_s, "All evaluations on the test set together."),
        ("Shut-down", s.shutdown_s, "Ending loader and workers."),
        ("From start to end", s.wall_s, "From leaving the queue."),
    )
    return [(what, formats.seconds(value), meaning) for what, value, meaning in rows]


def _others(s: RunSummary) -> list[tuple[str, str, str]]:
    whole = "Share of the samples in the partial cache: every epoch reads each sample once."
    left_out = f"{s.n_unreadable:,}" if s.n_unreadable else formats.NOT_AVAILABLE
    return [
        ("Test accuracy", formats.percent(s.test_accuracy), "On the test set, at the last evaluation."),
        ("CPU for each sample", formats.seconds(s.cpu_s_per_sample), "Of the job's process and its workers."),
        ("Storage on disk", formats.size(s.storage_bytes), _storage_help(s)),
        ("Cache hit rate", formats.percent(s.cache_hit_frac), whole),
        ("Unreadable", left_out, "Samples left out because they could not be read, each time they came up."),
    ]


def _storage_help(s: RunSummary) -> str:
    """Returns how long the storage took to make, and how much of it was in the page cache, where known."""
    made = f"Making it took {formats.seconds(s.storage_prepare_s)}. " if s.storage_prepare_s else ""
    if not math.isfinite(s.page_cached_frac):
        return made
    return f"{made}{formats.percent(s.page_cached_frac)} of it was in the page cache when training began."
