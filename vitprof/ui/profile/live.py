"""The live part of the Profile page: state, headline, tiles and charts of one run, redrawn while it goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import streamlit as st

from vitprof import charts, formats
from vitprof.analysis.arrays import Series, highest, mean
from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.analysis.tournament import key_in_words
from vitprof.charts import LiveChart
from vitprof.config.accelerators import is_simulated
from vitprof.store import StoredRun
from vitprof.store.groups import read_role
from vitprof.telemetry import NO_GPU_MESSAGE
from vitprof.ui import resources
from vitprof.ui.live_chart import ChartFeed, chart_state, live_chart
from vitprof.ui.points import PointCache
from vitprof.ui.series import RunSeries, Totals
from vitprof.ui.texts import escaped, guarded

T = TypeVar("T")

REFRESH_S = 0.5
MEMORY_TILES = (
    ("GPU memory, peak", "gpu_mem_job_bytes"),
    ("GPU memory in use", "gpu_mem_used_bytes"),
    ("Memory, peak", "job_rss_bytes"),
)
"""What the memory tile shows: the first of these that could be read."""
CHART_HEIGHT = 260
FACTS = ("copied", "throttled")
"""How notices begin that say where the data lie; the others say that something is not as it should be."""
STAGES = {
    "starting": "starting: loading PyTorch and opening the data",
    "preparing": "preparing the data",
    "staging": "copying the data",
    "training": "training",
    "evaluating": "evaluating on the test set",
    "finishing": "finishing",
    "stopping": "stopping",
}


@guarded
def draw_live(run_id: int, *, now: Callable[[], float] = time.perf_counter) -> None:
    """Everything about a run that goes on. When it ends, the whole page is drawn once more."""
    run = resources.store().run(run_id)
    if not run.live:
        st.rerun(scope="app")
    series = resources.series(run_id)
    series.refresh()
    draw_state(run, now())
    draw_set_up(run)
    if len(series.steps()["step"]):
        draw_headline(run, series.totals)
        draw_tiles(run, series)
        draw_charts(run, series)


@guarded
def draw_every_step(run: StoredRun) -> None:
    """The charts of a run that has ended; zooming in draws them again, in finer groups."""
    draw_charts(run, resources.series(run.id))


def draw_charts(run: StoredRun, series: RunSeries) -> None:
    """The run's steps and telemetry over time."""
    steps = series.steps()
    if not run.config.loader_only:
        draw_chart(charts.GAPS, run, steps)
    left, right = st.columns(2)
    with left:
        draw_chart(charts.BATCHES, run, steps)
        if not run.config.loader_only and np.isfinite(steps["loss"]).any():
            draw_chart(charts.LOSSES, run, steps)
    with right:
        telemetry = series.telemetry()
        if np.isfinite(telemetry["gpu_util_pct"]).any():
            draw_chart(charts.GPU, run, telemetry)
        draw_chart(charts.CPU, run, telemetry)


def draw_state(run: StoredRun, now: float) -> None:
    """One line and, while it runs, a bar with the time left."""
    if why := resources.manager().unrecorded.get(run.id):
        st.error(f"Failed: {escaped(why)}")
        return
    if run.status == "queued":
        st.progress(0.0, text="queued: another run has the device")
    elif run.status == "running":
        text = STAGES.get(run.stage, escaped(run.stage)) + (f": {escaped(run.message)}" if run.message else "")
        fraction = run.progress or 0.0
        if run.stage == "training" and run.training_since_s is not None and fraction > 0:
            left = (now - run.training_since_s) * (1 - fraction) / fraction
            text += f", {formats.seconds(max(left, 0.0))} left"
        st.progress(min(fraction, 1.0), text=text)
    elif run.status == "done":
        st.caption(f"done in {formats.seconds(run.summary.wall_s)}" if run.summary else "done")
    elif run.status == "stopped":
        st.warning(f"Stopped{': ' + escaped(run.error) if run.error else ''}. What was measured until then is kept.")
    else:
        st.error(f"{run.status.capitalize()}: {escaped(run.error)}")
    for notice in run.notices:
        (st.info if notice.startswith(FACTS) else st.warning)(escaped(notice))


def draw_set_up(run: StoredRun) -> None:
    """Draws what runs where, in one line."""
    config = run.config
    device = run.environment.get("device_name", config.device)
    isolation = (
        "in a process of its own"
        if config.isolation == "process"
        else "in a thread of this dashboard, whose own work can show up as stalls"
    )
    what = f"{config.dataset}, ViT {config.model}, {config.precision} on {escaped(str(device))}, {isolation}"
    if run.group_key:
        what += f". {_made_for(run)}"
    st.caption(what)


def _made_for(run: StoredRun) -> str:
    """Returns what a run of a group was made for. Markdown."""
    group, setting = run.group, read_role(run.role)[0]
    if group is None:
        return f"Made for {escaped(run.group_key)}, which this version of vitprof does not know"
    if group.run_id is not None:
        return f"Made for the {group.kind} of run {group.run_id}: {escaped(run.role)}"
    if group.kind == "tournament":
        return f"Trial of tournament {group.of}: {escaped(key_in_words(setting))}"
    return f"Made to tune {escaped(run.config.strategy)}: {escaped(setting or run.role)}"


def draw_headline(run: StoredRun, totals: Totals) -> None:
    """The measured answer in one sentence; no verdict on few steps."""
    if not totals.steps:
        st.markdown(
            "Warming up: the first steps are recorded and left out of the figures."
            if run.live
            else "The run ended within its warm-up, so there are no steady-state figures. Give it more steps."
        )
        return
    wait, idle, exposed = (
        formats.percent(totals.share(s)) for s in (totals.data_wait_s, totals.gap_s, totals.exposed_wait_s)
    )
    if run.config.loader_only:
        text = f"The loader alone delivers **{formats.number(totals.samples_per_s, 'samples/s')}**."
    else:
        text = f"The device was idle **{idle}** of the time; **{exposed}** because it waited for data."
    few = "" if totals.steps >= MIN_STEPS else f" Fewer than {MIN_STEPS} steady steps: too few to conclude from."
    st.markdown(f"{text} Data wait of the loop: {wait}, over {totals.steps:,} steady steps.{few}")


def draw_tiles(run: StoredRun, series: RunSeries) -> None:
    """Five figures, over the steady state so far."""
    totals, telemetry = series.totals, series.telemetry()
    trained = not run.config.loader_only
    simulated = "simulated" if is_simulated_run(run) else None
    peaks = ((label, highest(telemetry[name])) for label, name in MEMORY_TILES)
    memory = next((p for p in peaks if math.isfinite(p[1])), (MEMORY_TILES[-1][0], math.nan))
    utilisation = _utilisation(run, telemetry)
    tiles = (
        ("Samples/s", formats.number(totals.samples_per_s), "Throughput: samples trained on each second."),
        (
            "Data wait",
            formats.percent(totals.share(totals.data_wait_s)),
            "Share of the time that the training loop was blocked in next(loader).",
        ),
        (
            "Device idle",
            formats.percent(totals.share(totals.gap_s)) if trained else formats.NOT_AVAILABLE,
            "Share of the time between steps in which the device computed nothing. From events, not from NVML.",
        ),
        (
            "GPU-util",
            formats.percent(utilisation / 100),
            "Mean of NVML's utilisation while training: the share of time in which any kernel ran.",
        ),
        (memory[0], formats.size(memory[1]), "Highest value seen while the job ran."),
    )
    with st.container(key="tiles"):
        columns = st.columns(len(tiles))
    for column, (name, value, text) in zip(columns, tiles, strict=True):
        mark = None if name == memory[0] else simulated
        column.metric(name, value, mark, delta_color="off", delta_arrow="off", help=text, border=True, height="stretch")
    if not resources.gpus() and simulated is None:
        st.caption(NO_GPU_MESSAGE)


def is_simulated_run(run: StoredRun) -> bool:
    """Returns whether the device that the run trained on was only imitated."""
    return is_simulated(str(run.environment.get("device") or run.config.device))


def _utilisation(run: StoredRun, telemetry: Series) -> float:
    """Mean GPU-util while training: the summary's, or before there is one that of the samples since training began."""
    if run.summary is not None:
        return run.summary.gpu_util_pct_mean
    since = telemetry["t_s"] >= (run.training_since_s or math.inf)
    return mean(telemetry["gpu_util_pct"][since])


def draw_chart(chart: LiveChart, run: StoredRun, series: Series) -> None:
    """One live chart: its title with help, and the plot, in finer groups where the user zoomed in."""
    key = f"live-{chart.key}"
    st.markdown(f"**{chart.title}**", help=chart.help)
    state = chart_state(key)
    origin = run.t_origin_s or 0.0
    points = _for_session("point-cache", PointCache).points(chart, run.id, series, origin, state.view)
    feed = _for_session(f"feed-{key}", ChartFeed)
    update = feed.update(charts.live_figure(chart, points), run=str(run.id), alt=chart.alt, resync=state.resync)
    live_chart(update, key=key, height=CHART_HEIGHT)


def _for_session(key: str, make: Callable[[], T]) -> T:
    """Returns an object that lives as long as the browser's session."""
    if key not in st.session_state:
        st.session_state[key] = make()
    kept: T = st.session_state[key]
    return kept
