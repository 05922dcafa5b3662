"""The Compare page's sections: the device's time, every step, the data waits, headroom, and the settings that differ.
One at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from vitprof.analysis.compare.comparison import on_one_axis
from vitprof.analysis.compare.differences import Cell, Difference, config_differences
from vitprof.analysis.timing.gaps import IDLE_CAUSES
from vitprof.charts.breakdown import waterfall
from vitprof.charts.comparison import ecdf, idle_strips, overlay, shares
from vitprof.charts.style import DEVICE_TIME
from vitprof.store import StoredRun
from vitprof.ui import tables
from vitprof.ui.findings import DeviceTime, device_time_of, groups_each, headroom_of, line_of, waits_of
from vitprof.ui.live_chart import plot
from vitprof.ui.profile.live import is_simulated_run
from vitprof.ui.texts import escaped
from vitprof.ui.widgets import FIELDS, IN_URL, choose, label

CHART_HEIGHT = 400
LEGEND_ROW = 20
STRIP_BINS = 400
"""Spans of time in a row of idle shares; all runs share one axis."""
LONGEST_NAME = 48
"""Characters of a run's name in a chart: more leave no room for the chart on a phone."""
LOSS = "loss"
WAIT_COLUMNS = (
    tables.Column("Run", "Number and name.", lambda name, _: name),
    tables.Column("Median (ms)", "Half of the steps waited at most this long.", lambda _, waits: 1e3 * waits.median),
    tables.Column("p95 (ms)", "95% of the steps waited at most this long.", lambda _, waits: 1e3 * waits.p95),
    tables.Column("Longest (ms)", "The longest wait of a steady step.", lambda _, waits: 1e3 * waits.largest),
    tables.Column("Steps", "Steady steps.", lambda _, waits: waits.n, "%d", exact=True),
)


@dataclass(frozen=True)
class Metric:
    """A figure of every step, and its words in the chart."""

    words: str
    column: str
    y_title: str
    hover: str
    scale: float = 1e3


METRICS: dict[str, Metric] = {
    "wait": Metric("Data wait", "data_wait_s", "data wait (ms)", "waited %{y:.3~g} ms for data"),
    "step": Metric("Step time", "step_s", "time of a step (ms)", "step took %{y:.3~g} ms"),
    "idle": Metric("Device idle", "gap_s", "device idle before a step (ms)", "device idle for %{y:.3~g} ms"),
    "compute": Metric("Compute", "compute_s", "compute of a step (ms)", "computed for %{y:.3~g} ms"),
    "h2d": Metric("H2D", "h2d_s", "copy to the device (ms)", "copied for %{y:.3~g} ms"),
    LOSS: Metric("Loss", "loss", "training loss", "loss %{y:.4~g}", 1.0),
}
UNITS: dict[str, tuple[str, str, str]] = {
    "step": ("Per step", "mean time of a step (ms)", " ms"),
    "sample": ("Per sample", "mean time of a sample (µs)", " µs"),
    "share": ("Share", "share of the device's time (%)", "%"),
}
"""What times are given for -> label, axis title, unit in the hover texts."""


def names_of(runs: Sequence[StoredRun]) -> list[str]:
    """Returns the runs' names in charts: the number, and the parts of the name that are not the same in all runs."""
    parts = [run.name.split(", ") for run in runs]
    same = set.intersection(*map(set, parts)) if len(runs) > 1 else set()
    distinct = [", ".join(p for p in names if p not in same) or names[0] for names in parts]
    full = [f"{run.id}: {name}" for run, name in zip(runs, distinct, strict=True)]
    return [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in full]


def bars_height(n: int) -> int:
    """Returns the height of a chart with `n` bars, in pixels."""
    return 150 + n * (48 if n <= 12 else 40)


def draw_device_time(runs: Sequence[StoredRun]) -> None:
    """Draws the parts of each run's mean step, and the idle share over each run's length."""
    trained = [run for run in runs if not run.config.loader_only]
    loaded = [str(run.id) for run in runs if run.config.loader_only]
    if loaded:
        st.caption(f"Loader only, so no device time: {_these(loaded)}.")
    times = [(name, device_time_of(run.id)) for run, name in zip(trained, names_of(trained), strict=True)]
    timed = [(name, time) for name, time in times if time.mean is not None]
    untimed = [str(run.id) for run, (_, time) in zip(trained, times, strict=True) if time.mean is None]
    if not timed:
        st.info("None of these runs recorded when its device computed. Choose one that trained for at least 2 steps.")
        return
    if untimed:
        st.caption(f"Left out, with too few device timings: {_these(untimed)}.")
    same_batch = len({run.config.batch_size for run in trained}) == 1
    unit = choose(
        "unit",
        "Where a step's time goes",
        {key: words for key, (words, _, _) in UNITS.items()},
        default="step" if same_batch else "sample",
        help="Mean over the steady state, timed on the device: compute, and the time in which it computed nothing, by "
        "what the step was waiting for. Waits that were hidden behind queued work cost nothing and are not in it. "
        "Launch bubbles, where they are known, are apart from compute: in them the device waited for the next launch. "
        "With different batch sizes compare times per sample.",
    )
    _draw_bars(timed, unit)
    st.header(
        "Idle share over each run",
        anchor=False,
        help="Each run from its first request for a batch to the end of its last step.",
    )
    st.caption("Green: the device is busy. Pale: it idles. Blank: it evaluates, or the run has ended.")
    edges, idle = on_one_axis([(time.edges_s, time.idle) for _, time in timed], bins=STRIP_BINS)
    plot(
        idle_strips([name for name, _ in timed], edges, idle),
        height=bars_height(len(timed)) - 50,
        key="compare-idle",
    )


def _draw_bars(timed: Sequence[tuple[str, DeviceTime]], unit: str) -> None:
    _, title, suffix = UNITS[unit]
    scaled = [time.mean.scaled(unit) for _, time in timed if time.mean is not None]
    parts = []
    for cause in ("compute", "launch_idle", *IDLE_CAUSES):
        lengths = [values[cause] for values in scaled]
        if max(lengths) > 0:
            words, colour = DEVICE_TIME[cause]
            parts.append((words if cause not in IDLE_CAUSES else f"idle: {words}", colour, lengths))
    plot(
        shares([name for name, _ in timed], parts, x_title=title, unit=suffix),
        height=bars_height(len(timed)),
        key="compare-shares",
    )


def draw_steps(runs: Sequence[StoredRun]) -> None:
    """Draws one figure of every step, all runs in one chart."""
    chosen = choose(
        "metric",
        "Figure of every step",
        {key: metric.words for key, metric in METRICS.items()},
        default="wait",
        help="Data wait: time blocked in next(loader). Device idle: from the end of the step before to the start of "
        "compute. H2D: the copy to the device. Loss: with the same seed, data and batch size the curves coincide.",
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):  # in a row a control does not wrap on a phone
        by = choose(
            "align",
            "Aligned by",
            {"step": "Step", "time": "Time"},
            default="step",
            help="The number of the step, or the time since the first request for a batch.",
        )
        warmup = st.toggle(
            "Include warm-up steps",
            key="warmup",
            bind=IN_URL,
            help="The first steps include the start of workers and caches; often so long that the rest looks flat.",
        )
    metric = METRICS[chosen]
    shown = [run for run in runs if chosen != LOSS or not (is_simulated_run(run) or run.config.loader_only)]
    if not shown:
        st.info("A simulated device computes no loss, and neither does a run that only loads. Choose another figure.")
        return
    if len(shown) < len(runs):
        st.caption(f"No loss for {_these([str(run.id) for run in runs if run not in shown])}.")
    groups = groups_each(len(shown))
    figures = [line_of(run.id, metric.column, groups, warmup or chosen == LOSS) for run in shown]
    lines = [
        (name, line.step if by == "step" else line.t_s, line.value * np.float32(metric.scale))
        for name, line in zip(names_of(shown), figures, strict=True)
        if np.isfinite(line.value).any()
    ]
    absent = [str(run.id) for run, line in zip(shown, figures, strict=True) if not np.isfinite(line.value).any()]
    if not lines:
        st.info(f"None of these runs recorded {metric.words.lower()}. Choose another figure.")
        return
    plot(
        overlay(
            lines,
            x_title="step" if by == "step" else "time since training began (s)",
            y_title=metric.y_title,
            hover=metric.hover,
        ),
        height=CHART_HEIGHT + LEGEND_ROW * len(lines),
        key=f"compare-{'loss' if chosen == LOSS else 'steps'}",
        zooms=True,
    )
    coarse = max(line.group for line in figures)
    notes = [f"Left out, without this figure: {_these(absent)}."] if absent else []
    if coarse > 1:
        notes.append(f"Each group of {coarse:,} steps is drawn by its lowest and highest value, so no peak is lost.")
    if n_warmup := max(line.warmup for line in figures):
        notes.append(f"Left out: {n_warmup:,} warm-up steps.")
    if notes:
        st.caption(" ".join(notes))


def draw_waits(runs: Sequence[StoredRun]) -> None:
    """Draws the distributions of the data waits, as curves and in figures."""
    st.header(
        "How long the loop waited for its batches",
        anchor=False,
        help="Each curve is one run: its height is the share of the steady steps that waited at most as long as the "
        "axis says. Further left is better; a flat tail to the right is a few steps that waited long. The axis is "
        "logarithmic. A wait that the device's queued work hides costs nothing.",
    )
    waits_of_runs = [(name, waits_of(run.id)) for run, name in zip(runs, names_of(runs), strict=True)]
    if not any(waits.n for _, waits in waits_of_runs):
        st.info("None of these runs got past its warm-up. Train for more steps.")
        return
    plot(ecdf(waits_of_runs), height=CHART_HEIGHT + LEGEND_ROW * len(waits_of_runs), key="compare-waits", zooms=True)
    tables.draw(WAIT_COLUMNS, tables.frame(WAIT_COLUMNS, waits_of_runs), key="compare-wait-figures")


def draw_headroom(runs: Sequence[StoredRun]) -> None:
    """Draws the waterfalls of the runs whose headroom was measured, side by side and to one scale."""
    st.header(
        "Headroom, side by side",
        anchor=False,
        help="What a step takes when its data are free (A), and what transfer, preparation and storage add. Measured "
        "with short runs of the same job. All charts have the same scale.",
    )
    measured = [(run, headroom) for run in runs if (headroom := headroom_of(run)) is not None]
    without = [str(run.id) for run in runs if run.id not in {r.id for r, _ in measured}]
    if without:
        st.info(
            f"Headroom is not measured for {_these(without)}. "
            f"Open {'it' if len(without) == 1 else 'them'} in Profile and press Measure headroom.",
            icon=":material/stairs:",
        )
    figures = [(run, waterfall(headroom, run.config.batch_size)) for run, headroom in measured]
    tops = [figure.data[1].y for _, figure in figures if len(figure.data) > 1]
    top = 1.15 * max((float(np.nanmax(y)) for y in tops if len(y)), default=0.0)
    columns = st.columns(2) if len(figures) > 1 else [st.container()]
    for place, (run, figure) in enumerate(figures):
        if top > 0:
            figure.update_yaxes(range=[0, top])
        with columns[place % len(columns)]:
            st.subheader(f"Run {run.id}: {escaped(run.name)}", anchor=False)
            plot(figure, height=320, key=f"compare-waterfall-{run.id}")


def _these(ids: Sequence[str]) -> str:
    return f"run {ids[0]}" if len(ids) == 1 else f"runs {', '.join(ids[:-1])} and {ids[-1]}"


RUN_WIDTH = 190
HIGHLIGHT = "background-color: rgba(230, 159, 0, 0.28)"
"""Translucent, so that the text keeps its contrast on a light and on a dark page."""


def draw_settings(runs: Sequence[StoredRun], baseline: int | None) -> None:
    """Draws the settings in which the runs differ, compared with the run at position `baseline` (None: the first)."""
    if len(runs) < 2:
        st.info("Choose a second run to see in which settings the two differ.")
        return
    at = baseline or 0
    differences = config_differences([run.config for run in runs], at)
    if not differences:
        st.info("These runs have the same settings: any difference comes from chance or the machine.")
        return
    st.header(
        f"{len(differences)} {'setting differs' if len(differences) == 1 else 'settings differ'}",
        anchor=False,
        help="Only settings that are not the same in all of these runs. Highlighted: another value than the "
        "baseline's, where both runs use the setting.",
    )
    headers = names_of(runs)
    headers[at] += " (baseline)"
    tables.show(
        _highlighted(differences, headers),
        key="compare-settings",
        column_config={
            "Setting": st.column_config.TextColumn(help="As in the sidebar and on the command line.", pinned=True),
            **{header: st.column_config.TextColumn(width=RUN_WIDTH) for header in headers},
            "What it is": st.column_config.TextColumn(help="The setting's own help text.", width="large"),
        },
    )
    st.caption(
        "(default): chosen by the strategy, the model or vitprof. not set: left out, or not used by this strategy."
    )


def settings_frame(differences: Sequence[Difference], headers: Sequence[str]) -> pd.DataFrame:
    """Returns one row for each difference: the setting, its value in each run, and what it is."""
    columns: dict[str, list[str]] = {"Setting": [label(difference.field) for difference in differences]}
    columns |= {header: [said(difference.cells[i]) for difference in differences] for i, header in enumerate(headers)}
    columns["What it is"] = [
        str(FIELDS[difference.field].metadata.get("description", "")) for difference in differences
    ]
    return pd.DataFrame(columns)


def said(cell: Cell) -> str:
    """Returns a setting's value as text, marked where it is a default."""
    return _value_text(cell.value) + (" (default)" if cell.default else "")


def _value_text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}" if value < 2**31 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _highlighted(differences: Sequence[Difference], headers: Sequence[str]) -> Any:
    """Returns `frame` with those cells coloured that differ from the baseline's."""
    shown = settings_frame(differences, headers)
    colours = pd.DataFrame("", index=shown.index, columns=shown.columns)
    for row, difference in enumerate(differences):
        for header, cell in zip(headers, difference.cells, strict=True):
            if cell.differs:
                colours.loc[row, header] = HIGHLIGHT
    return shown.style.apply(lambda _: colours, axis=None)
