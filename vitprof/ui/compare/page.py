"""The Compare page's table, charts and downloads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from vitprof import charts, formats
from vitprof.analysis.comparison import against_slowest
from vitprof.analysis.differences import Caveat
from vitprof.analysis.downsample import group_size, min_max
from vitprof.analysis.gaps import IDLE_CAUSES
from vitprof.analysis.guard import comparability, run_facts
from vitprof.analysis.steady import steady_state
from vitprof.charts.style import DEVICE_TIME
from vitprof.export import steps_csv, summary_csv
from vitprof.records import RunSummary
from vitprof.store import Series, StoredRun
from vitprof.ui import resources
from vitprof.ui.findings import Idle, idle_of, verdict_of
from vitprof.ui.live import is_simulated_run
from vitprof.ui.texts import escaped

CHART_HEIGHT = 320
MAX_GROUPS = 900
MOST_WARNINGS = 3
"""Warnings told in full; more are a count to open."""

FIGURES: dict[str, str] = {
    "Run": "Number and name.",
    "Verdict": "Whether loading held the device up: under 5% of the time idle for data is not input-bound, 5 to 20% "
    "moderately, over 20% input-bound; the lower end of the 95% interval decides.",
    "Seconds per epoch": "Training time of an epoch; ~ where it is extrapolated from the throughput.",
    "Samples/s": "Steady-state throughput, ± half of its 95% interval.",
    "Copied first": "Time to copy the data to RAM disk or local disk before training; not part of the epoch.",
    "Speed-up": "Throughput over the slowest run's, with the range the intervals allow; a tie where they overlap.",
    "Data wait": "Share of the steady time that the training loop was blocked in next(loader).",
    "Device idle": "Share of the steady time between steps in which the device computed nothing.",
    "Accuracy": "On the test set, at the last evaluation.",
    "GPU-util": "Mean of NVML's utilisation while training.",
    "GPU memory": "Highest device memory of the job.",
    "Memory": "Highest resident memory of the job's processes.",
}


def table(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """One row for each run, one column for each of `FIGURES`, as a person reads them."""
    rows = []
    for run, gain in zip(runs, against_slowest([r.summary for r in runs]), strict=True):
        s = run.summary or RunSummary()
        half = (s.samples_per_s_high - s.samples_per_s_low) / 2
        spread = f" ({gain.low:.2f}-{gain.high:.2f})" if np.isfinite(gain.low) and gain.speed_up != 1 else ""
        speed_up = f"{gain.speed_up:.2f}x{spread}{', tie' if gain.tie else ''}"
        rows.append(
            (
                f"{run.id}: {run.name}",
                verdict_of(run).kind + (", simulated" if is_simulated_run(run) else ""),
                ("" if s.n_epochs_measured else "~ ") + formats.number(s.epoch_s, "s"),
                formats.number(s.samples_per_s)
                + (f" ± {formats.percent(half / s.samples_per_s)}" if np.isfinite(half) else ""),
                formats.seconds(s.stage_s) if s.stage_s > 0 else "",
                speed_up if np.isfinite(gain.speed_up) else formats.NOT_AVAILABLE,
                formats.percent(s.data_wait_frac),
                formats.percent(s.device_idle_frac),
                formats.percent(s.test_accuracy),
                formats.percent(s.gpu_util_pct_mean / 100),
                formats.size(s.gpu_mem_peak_bytes),
                formats.size(s.rss_peak_bytes),
            )
        )
    return pd.DataFrame(rows, columns=list(FIGURES))


def draw_caveats(runs: Sequence[StoredRun]) -> None:
    """What makes the comparison unfair: warnings in full as long as they are few, all else a click away."""
    found = caveats(runs)
    warnings = [c for c in found if c.level == "warning"]
    many = len(warnings) > MOST_WARNINGS
    rest = found if many else [c for c in found if c.level != "warning"]
    if not many:
        for caveat in warnings:
            st.warning(escaped(caveat.sentence), icon=":material/balance:")
    if rest:
        count = f":material/balance: {len(warnings)} warnings: these runs do not compare fairly"
        with st.expander(count if many else "What else differs"):
            for caveat in rest:
                st.markdown(f"- {escaped(caveat.sentence)}")


def caveats(runs: Sequence[StoredRun]) -> tuple[Caveat, ...]:
    """What differs between runs beside the way they load their data, see `analysis.guard`."""
    facts = []
    for run in runs:
        series = resources.series(run.id)
        series.refresh()
        facts.append(
            run_facts(
                run.id,
                run.name,
                run.config,
                run.environment,
                run.facts,
                run.summary,
                series.steps(),
                series.telemetry(),
            )
        )
    return comparability(facts)


def draw_table(runs: Sequence[StoredRun]) -> None:
    st.dataframe(
        table(runs),
        hide_index=True,
        width="stretch",
        height="content",
        column_config={name: st.column_config.TextColumn(name, help=text) for name, text in FIGURES.items()},
    )


def draw_downloads(runs: Sequence[StoredRun]) -> None:
    """CSV, made when it is asked for."""
    store = resources.store()
    stamp = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d-%H%M%S")
    left, right, _ = st.columns([1, 1, 2])
    left.download_button(
        "Summary as CSV",
        data=lambda: summary_csv(runs).encode(),
        file_name=f"vitprof-runs-{stamp}.csv",
        mime="text/csv",
        on_click="ignore",
        key="download-summary",
        width="stretch",
        icon=":material/download:",
        help="One row for each run: its settings and all its figures, units in the header.",
    )
    right.download_button(
        "Every step as CSV",
        data=lambda: steps_csv(store, runs).encode(),
        file_name=f"vitprof-steps-{stamp}.csv",
        mime="text/csv",
        on_click="ignore",
        key="download-steps",
        width="stretch",
        icon=":material/download:",
        help="One row for each step of each run; times since the start of the run.",
    )


def draw_charts(runs: Sequence[StoredRun]) -> None:
    """The mean step taken apart, and each run's steps laid over each other."""
    names = [f"{run.id}: {run.name}" for run in runs]
    steps = []
    for run in runs:
        series = resources.series(run.id)
        series.refresh()
        steps.append(series.steps())
    st.markdown(
        "**Where a step's time goes**",
        help="Mean over the steady state. Exposed wait: the device idled because the loop waited for data. Other idle: "
        "the device idled for another reason, such as copies and Python's own work.",
    )
    figure = charts.shares(names, _parts(steps))
    st.plotly_chart(
        figure,
        width="stretch",
        height=110 + 42 * len(runs),
        key="compare-shares",
        config={"displaylogo": False},
    )
    _draw_idle(runs, names)
    left, right = st.columns(2)
    with left:
        st.markdown("**Time of each step**", help="Beyond 900 steps the lowest and highest of each group are drawn.")
        lines = [(n, *_thinned(s, "step_s", 1e3)) for n, s in zip(names, steps, strict=True)]
        _overlay(lines, "time (ms)", "step-time")
    with right:
        st.markdown("**Training loss**", help="With the same seed and batch size the curves lie on each other.")
        if all(is_simulated_run(run) for run in runs):
            st.caption("A simulated device computes no loss.")
        else:
            lines = [(n, *_thinned(s, "loss", 1.0)) for n, s in zip(names, steps, strict=True)]
            _overlay(lines, "loss", "loss")


def _draw_idle(runs: Sequence[StoredRun], names: Sequence[str]) -> None:
    """The idle share of each run's device by cause; runs that only loaded have none."""
    found = [(name, idle.gaps.shares()) for run, name in zip(runs, names, strict=True) if (idle := _idle(run))]
    if not found:
        return
    st.markdown(
        "**Device idle, by cause**",
        help="Share of the steady time in which the device computed nothing, by what the step was waiting for.",
    )
    parts = [(*DEVICE_TIME[cause], [100 * share[cause] for _, share in found]) for cause in IDLE_CAUSES]
    figure = charts.shares(
        [name for name, _ in found],
        [part for part in parts if max(part[2]) > 0],
        x_title="share of the device's time (%)",
        unit="%",
    )
    st.plotly_chart(
        figure,
        width="stretch",
        height=110 + 42 * len(found),
        key="compare-idle",
        config={"displaylogo": False},
    )


def _idle(run: StoredRun) -> Idle | None:
    return None if run.config.loader_only else idle_of(run.id)


def _overlay(lines: Sequence[tuple[str, charts.Floats, charts.Floats]], y_title: str, key: str) -> None:
    figure = charts.overlay(lines, x_title="step", y_title=y_title)
    st.plotly_chart(figure, width="stretch", height=CHART_HEIGHT, key=f"compare-{key}", config={"displaylogo": False})


def _thinned(steps: Series, name: str, scale: float) -> tuple[charts.Floats, charts.Floats]:
    n = len(steps["step"])
    at = min_max(steps[name], 0, n, group_size(n, MAX_GROUPS))
    return steps["step"][at], steps[name][at] * scale


def _parts(steps: Sequence[Series]) -> list[tuple[str, str, list[float]]]:
    """Mean milliseconds of a steady step: compute, exposed wait, other idle time."""
    compute, exposed, other = [], [], []
    for series in steps:
        steady = steady_state(series)
        n = max(1, int(steady.sum()))
        mean = {name: float(series[name][steady].sum()) / n * 1e3 for name in ("compute_s", "exposed_wait_s", "gap_s")}
        compute.append(mean["compute_s"])
        exposed.append(mean["exposed_wait_s"])
        other.append(max(0.0, mean["gap_s"] - mean["exposed_wait_s"]))
    return [
        ("compute", charts.COMPUTE, compute),
        ("exposed data wait", charts.DATA_WAIT, exposed),
        ("other idle", charts.OTHER, other),
    ]
