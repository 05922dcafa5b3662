"""The sections of the Compare page.

They are device time, every step, data waits, headroom, the settings that differ, and a picture for
a talk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from vitprof.analysis.compare.differences import Cell, config_differences
from vitprof.analysis.timing.gaps import IDLE_CAUSES
from vitprof.charts import breakdown, comparison, style
from vitprof.config import descriptions
from vitprof.store import StoredRun
from vitprof.ui import findings, live_chart, tables, talk, texts, widgets
from vitprof.ui.profile.live import is_simulated_run

CHART_HEIGHT = 400
LEGEND_ROW = 20
LONGEST_NAME = 48
"""Characters of a run's name in a chart: more leave no room for the chart on a phone."""
RUN_WIDTH = 190
HIGHLIGHT = "background-color: rgba(230, 159, 0, 0.28)"
"""Translucent, so that the text keeps its contrast on a light and on a dark page."""
LOSS = "loss"
WAIT_COLUMNS = (
    tables.TableColumn("Run", "Number and name.", lambda name, _: name),
    tables.TableColumn(
        "Median (ms)",
        "Half of the steps waited at most this long.",
        lambda _, waits: 1e3 * waits.median,
    ),
    tables.TableColumn(
        "p95 (ms)", "95% of the steps waited at most this long.", lambda _, waits: 1e3 * waits.p95
    ),
    tables.TableColumn(
        "Longest (ms)", "The longest wait of a steady step.", lambda _, waits: 1e3 * waits.largest
    ),
    tables.TableColumn("Steady steps", "Behind these figures.", lambda _, waits: waits.n),
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
    "idle": Metric(
        "Device idle", "gap_s", "device idle before a step (ms)", "device idle for %{y:.3~g} ms"
    ),
    "compute": Metric(
        "Compute", "compute_s", "compute of a step (ms)", "computed for %{y:.3~g} ms"
    ),
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
    """Returns the runs' names in charts.

    A name is the number, and the parts of the run's name that are not the same in all runs.
    """
    parts_of = {run.id: run.name.split(", ") for run in runs}
    same: set[str] = set()
    if len(runs) > 1:
        same = set.intersection(*map(set, parts_of.values()))
    names = []
    for run in runs:
        parts = parts_of[run.id]
        distinct = ", ".join(part for part in parts if part not in same) or parts[0]
        name = f"{run.id}: {distinct}"
        if len(name) > LONGEST_NAME:
            name = f"{name[: LONGEST_NAME - 1]}…"
        names.append(name)
    return names


def _these(runs: Sequence[StoredRun]) -> str:
    return texts.numbers_of([run.id for run in runs])


def draw_device_time(runs: Sequence[StoredRun]) -> None:
    """Draws the parts of each run's mean step, and what its device did from begin to end."""
    trained = [run for run in runs if not run.config.loader_only]
    if len(trained) < len(runs):
        loaded = [run for run in runs if run.config.loader_only]
        st.caption(f"Loader only, so no device time: {_these(loaded)}.")
    times = {run.id: findings.device_time_of(run.id) for run in trained}
    untimed = [run for run in trained if times[run.id].mean is None]
    if len(untimed) == len(trained):
        st.info(
            "None of these runs recorded when its device computed. Choose one that trained for at "
            "least 2 steps."
        )
        return
    if untimed:
        st.caption(f"Left out, with too few device timings: {_these(untimed)}.")
    same_batch = len({run.config.batch_size for run in trained}) == 1
    unit = widgets.choose(
        "unit",
        "Where does a step's time go?",
        {key: words for key, (words, _, _) in UNITS.items()},
        default="step" if same_batch else "sample",
        help="Mean while training, timed on the device: compute, launch bubbles where they are known, and idle time "
        "by what the step was waiting for. With different batch sizes compare times per sample.",
    )
    names = []
    for run, name in zip(trained, names_of(trained), strict=True):
        if run not in untimed:
            names.append(name)
    row = 48 if len(names) <= 12 else 40
    height = 150 + len(names) * row
    scaled = [time.mean.scaled(unit) for time in times.values() if time.mean is not None]
    parts = []
    for cause in ("compute", "launch_idle", *IDLE_CAUSES):
        lengths = [values[cause] for values in scaled]
        if max(lengths) > 0:
            words, colour = style.DEVICE_TIME[cause]
            if cause in IDLE_CAUSES:
                words = f"idle: {words}"
            parts.append((words, colour, lengths))
    _, title, suffix = UNITS[unit]
    live_chart.plot(
        comparison.shares(names, parts, x_title=title, unit=suffix),
        height=height,
        key="compare-shares",
    )
    about = (
        "Each run from its first step to its last. A column shows the shares of its steps. Waits "
        "for data include copies; other: Python, launching kernels, evaluation."
    )
    st.header("Does it change over the run?", anchor=False, help=about)
    strips = [time.strip for time in times.values() if time.mean is not None]
    figure = comparison.activity_strips(names, strips)
    live_chart.plot(figure, height=height - 20, key="compare-strips")


def draw_steps(runs: Sequence[StoredRun]) -> None:
    """Draws one figure of every step, all runs in one chart."""
    chosen = widgets.choose(
        "metric",
        "Figure of every step",
        {key: metric.words for key, metric in METRICS.items()},
        default="wait",
        help="Data wait: time blocked in next(loader). Device idle: from the end of the step before to the start of "
        "compute. H2D: the copy to the device. Loss: with the same seed, data and batch size the curves coincide.",
    )
    # in a row a control does not wrap on a phone
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by = widgets.choose(
            "align",
            "Aligned by",
            {"step": "Step", "time": "Time"},
            default="step",
            help="The number of the step, or the time since the first request for a batch.",
        )
        warmup = st.toggle(
            "Include warm-up steps",
            **widgets.kept("warmup"),
            help="The first steps include the start of workers and caches; often so long that the rest looks flat.",
        )
    metric = METRICS[chosen]
    shown = list(runs)
    if chosen == LOSS:
        shown = [run for run in runs if not (is_simulated_run(run) or run.config.loader_only)]
    if not shown:
        st.info(
            "A simulated device computes no loss, and neither does a run that only loads. Choose "
            "another figure."
        )
        return
    if len(shown) < len(runs):
        st.caption(f"No loss for {_these([run for run in runs if run not in shown])}.")
    groups = findings.groups_each(len(shown))
    with_warmup = warmup or chosen == LOSS
    drawn = []
    lines = []
    absent = []
    for run, name in zip(shown, names_of(shown), strict=True):
        line = findings.line_of(run.id, metric.column, groups, with_warmup)
        lines.append(line)
        if not np.isfinite(line.value).any():
            absent.append(run)
            continue
        x = line.step if by == "step" else line.t_s
        drawn.append((name, x, line.value * np.float32(metric.scale)))
    if not drawn:
        st.info(f"None of these runs recorded {metric.words.lower()}. Choose another figure.")
        return
    x_title = "step" if by == "step" else "time since training began (s)"
    live_chart.plot(
        comparison.overlay(
            drawn,
            x_title=x_title,
            y_title=metric.y_title,
            hover=metric.hover,
            connectgaps=chosen == LOSS,
        ),
        height=CHART_HEIGHT + LEGEND_ROW * len(drawn),
        key="compare-loss" if chosen == LOSS else "compare-steps",
        zooms=True,
    )
    notes = []
    if absent:
        notes.append(f"Left out, without this figure: {_these(absent)}.")
    coarse = max(line.group for line in lines)
    if coarse > 1:
        notes.append(
            f"Each group of {coarse:,} steps is drawn by its lowest and highest value, so no peak "
            "is lost."
        )
    if n_warmup := max(line.warmup for line in lines):
        notes.append(f"Left out: {n_warmup:,} warm-up steps.")
    if notes:
        st.caption(" ".join(notes))


def draw_waits(runs: Sequence[StoredRun]) -> None:
    """Draws the distributions of the data waits, as curves and in figures."""
    st.header(
        "How long does the loop wait for a batch?",
        anchor=False,
        help="Each curve is one run: its height is the share of the steady steps that waited at most so long. Further "
        "left is better; a flat tail to the right is a few steps that waited long.",
    )
    waits = [
        (name, findings.waits_of(run.id)) for run, name in zip(runs, names_of(runs), strict=True)
    ]
    if not any(distribution.n for _, distribution in waits):
        st.info("None of these runs got past its warm-up. Train for more steps.")
        return
    height = CHART_HEIGHT + LEGEND_ROW * len(waits)
    live_chart.plot(comparison.ecdf(waits), height=height, key="compare-waits", zooms=True)
    tables.draw(WAIT_COLUMNS, waits, key="compare-wait-figures")


def draw_headroom(runs: Sequence[StoredRun]) -> None:
    """Draws the waterfalls of the runs whose headroom was measured, side by side and to one
    scale.
    """
    st.header(
        "How fast would each be with free data?",
        anchor=False,
        help="What a step takes when its data are free (A), and what transfer, preparation and storage add. Measured "
        "with short runs of the same job. All charts have the same scale.",
    )
    figures = []
    without = []
    for run in runs:
        headroom = findings.headroom_of(run)
        if headroom is None:
            without.append(run)
        else:
            figures.append((run, breakdown.waterfall(headroom, run.config.batch_size)))
    if without:
        text = (
            f"Headroom is not measured for {_these(without)}. Answer of a built-in job measures it."
        )
        st.info(text, icon=":material/stairs:")
    tops = [figure.data[1].y for _, figure in figures if len(figure.data) > 1]
    top = 1.15 * max((float(np.nanmax(y)) for y in tops if len(y)), default=0.0)
    columns = st.columns(2) if len(figures) > 1 else [st.container()]
    for place, (run, figure) in enumerate(figures):
        if top > 0:
            figure.update_yaxes(range=[0, top])
        with columns[place % len(columns)]:
            st.subheader(f"Run {run.id}: {texts.escaped(run.name)}", anchor=False)
            live_chart.plot(figure, height=320, key=f"compare-waterfall-{run.id}")


def draw_settings(runs: Sequence[StoredRun], baseline: int | None) -> None:
    """Draws the settings in which the runs differ.

    They are compared with the run at position `baseline`; None is the first.
    """
    if len(runs) < 2:
        st.info("Choose a second run to see in which settings the two differ.")
        return
    at = baseline or 0
    differences = config_differences([run.config for run in runs], at)
    if not differences:
        st.info(
            "These runs have the same settings: any difference comes from chance or the machine."
        )
        return
    differ = "setting differs" if len(differences) == 1 else "settings differ"
    st.header(
        f"{len(differences)} {differ}",
        anchor=False,
        help="Only settings that are not the same in all of these runs. Highlighted: another value than the "
        "baseline's, where both runs use the setting.",
    )
    headers = names_of(runs)
    headers[at] += " (baseline)"
    about = descriptions()
    rows = []
    colours = []
    for d in differences:
        rows.append([widgets.label(d.field), *map(_value, d.cells), about[d.field]])
        colours.append(["", *(HIGHLIGHT if cell.differs else "" for cell in d.cells), ""])
    shown = pd.DataFrame(rows, columns=["Setting", *headers, "What it is"])
    tables.show(
        shown.style.apply(lambda _: pd.DataFrame(colours, columns=shown.columns), axis=None),
        key="compare-settings",
        column_config={
            "Setting": st.column_config.TextColumn(
                help="As in the sidebar and on the command line.", pinned=True
            ),
            **{header: st.column_config.TextColumn(width=RUN_WIDTH) for header in headers},
            "What it is": st.column_config.TextColumn(
                help="The setting's own help text.", width="large"
            ),
        },
    )
    st.caption(
        "(default): chosen by the strategy, the model or vitprof. not set: left out, or not used "
        "by this strategy."
    )


def draw_talk(runs: Sequence[StoredRun], baseline: int | None) -> None:
    """Draws the picture of two runs, the baseline first."""
    if len(runs) != 2:
        st.info("Choose two runs: the picture shows one above the other.")
        return
    now = runs[baseline or 0]
    (then,) = (run for run in runs if run.id != now.id)
    talk.draw_of_pair(now, then)


def _value(cell: Cell) -> str:
    """Returns a setting's value as text, marked where it is a default."""
    if cell.value is None:
        return "not set"
    text = texts.value_in_words(cell.value)
    return f"{text} (default)" if cell.default else text
