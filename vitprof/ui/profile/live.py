"""The top of the Profile page for a run, from its place in the queue to its figures, and its charts over time."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import streamlit as st

from vitprof import formats, store
from vitprof.analysis import arrays, thresholds
from vitprof.analysis.timing import summary
from vitprof.analysis.timing.utilisation import (
    MEANING,
    SmActivity,
    device_memory,
    sm_activity,
    sm_activity_so_far,
)
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.charts.live import BATCHES, CPU, GAPS, GPU, LOSSES, LiveChart, gap_notes, live_figure
from vitprof.charts.style import NEUTRAL
from vitprof.config import accelerators, catalog, own_script
from vitprof.cores import job_cores
from vitprof.jobs import scheduling
from vitprof.ui import resources, widgets
from vitprof.ui.live_chart import Pick, draw_growing, view_of
from vitprof.ui.texts import act_button, escaped, guarded, rough_time, sentence

OnPick = Callable[[Pick], None] | None

REFRESH_S = 0.5 if job_cores() > 4 else 2.0
"""Where there are few cores, a browser on the same machine would take too much of them."""
MEMORY_TILES = (
    ("GPU memory, peak", "gpu_mem_job_bytes", "of the job's processes, by NVML"),
    ("GPU memory in use", "gpu_mem_used_bytes", "of all processes on the GPU, by NVML"),
    ("Memory, peak", "job_rss_bytes", "of the job's processes, resident in RAM"),
)
"""What the memory tile shows, the first of these that could be read: label, column, and whose memory it is."""
WAIT_HELP = "Share of the time that the loop was blocked in next(loader); below, what of it left the device idle."
IDLE_HELP = "Share of the time between steps in which the device computed nothing. From events, not from NVML."
FACTS = ("copied", "throttled")
"""How notices begin that only state where the data are; all others are warnings."""
STAGES = {
    "preparing": "preparing the data",
    "staging": "copying the data",
    "evaluating": "evaluating on the test set",
}
"""Stages that are not said by their own name."""


@guarded
def draw_live(run_id: int, status: str) -> None:
    run = resources.store().run(run_id)
    if run.status != status:  # what is above has other buttons then
        st.rerun(scope="app")
    series = resources.series(run_id)
    series.refresh(run.facts)
    draw_state(run, time.perf_counter())
    begun = len(series.steps()["step"]) > 0
    if begun:
        draw_headline(run, series)
        draw_tiles(run, series)
    elif run.status == "running":
        draw_start(run, time.perf_counter())
    with st.container(
        key="set-up"
    ):  # where the tabs will be when the run has ended: the charts then stay in place
        st.caption(set_up(run))
    if begun:
        if not run.config.loader_only:
            draw_gaps(run, series)
        draw_others(run, series)


def draw_others(
    run: store.StoredRun,
    series: resources.RunSeries,
    *,
    on_pick: OnPick = None,
    at: int | None = None,
) -> None:
    steps = series.steps()
    telemetry = series.telemetry()
    # for a slice of a GPU in MIG mode NVML reports the memory, but no utilisation
    gpu_known = any(
        np.isfinite(telemetry[name]).any() for name in ("gpu_util_pct", "gpu_mem_used_bytes")
    )
    moment_s = (
        math.nan if at is None else float(steps["compute_start_s"][at]) - (run.t_origin_s or 0.0)
    )
    by_step = (
        [BATCHES, LOSSES]
        if not run.config.loader_only and np.isfinite(steps["loss"]).any()
        else [BATCHES]
    )
    mark = math.nan if at is None else at
    drawn = [
        partial(draw_chart, chart, run, steps, on_pick=on_pick, mark=mark) for chart in by_step
    ]
    over_time = (GPU, CPU) if gpu_known else (CPU,)
    drawn += [partial(draw_chart, chart, run, telemetry, mark=moment_s) for chart in over_time]
    for column, draw in zip(cycle(st.columns(2)), drawn, strict=False):
        with column:
            draw()
    if missing := run.environment.get("gpu_not_available"):
        st.caption(escaped(f"Not available for this GPU: {missing}."))
    elif not gpu_known and not resources.gpus() and not is_simulated_run(run):
        st.caption("No NVIDIA GPU here: device figures are not available.")


def draw_state(run: store.StoredRun, now: float) -> None:
    if reason := resources.manager().why_away(run.id):
        st.warning(
            f"The run store cannot be written ({escaped(reason)}). Nothing is lost: what the run measures is kept, and "
            "written when the store is back. Until then this page shows what was written before."
        )
    if run.status == "queued":
        draw_queued(run)
    elif run.status == "running":
        text = STAGES.get(run.stage, escaped(run.stage)) + (
            f": {escaped(run.message)}" if run.message else ""
        )
        fraction = run.progress or 0.0
        if own_script.is_own_script(run.config) and run.training_since_s is not None:
            text += f", for {formats.seconds(max(now - run.training_since_s, 0.0))}"
        elif run.stage == "training" and run.training_since_s is not None and fraction > 0:
            left = (run.config.seconds or (now - run.training_since_s) / fraction) * (1 - fraction)
            text += f", about {rough_time(max(left, 0.0))} left"
        st.progress(min(fraction, 1.0), text=text)
    elif run.status == "stopped":
        st.warning(
            f"Stopped{': ' + escaped(run.error) if run.error else ''}. What was measured until then is kept."
        )
    elif run.status != "done":
        st.error(f"{run.status.capitalize()}: {escaped(run.error)}")
    for notice in run.notices:
        (st.info if notice.startswith(FACTS) else st.warning)(escaped(sentence(notice)))


def set_up(run: store.StoredRun) -> str:
    config = run.config
    own = own_script.is_own_script(run.config)
    where = escaped(device_of(run))
    done = ""
    if own and config.dataset == own_script.UNKNOWN_DATA:  # it has just started
        return "A script of your own, watched from inside"
    if own:
        isolation = "a script of your own, watched from inside"
    elif config.isolation == "process":
        isolation = "in a process of its own"
    else:
        isolation = "in a thread of this dashboard, whose own work can show up as stalls"
    if run.status == "done":
        done = f"Done in {formats.seconds(run.summary.wall_s)}. " if run.summary else "Done. "
    trained = (
        f"trained on {where}"
        if own
        else f"{catalog.model_words(config.model)}, {config.precision} on {where}"
    )
    if (n := int(run.environment.get("world_size") or 1)) > 1:
        trained += f", rank {run.environment.get('rank', 0)} of {n}"
    what = f"{done}Data set {escaped(config.dataset)}, {'no training' if config.loader_only else trained}, {isolation}"
    return f"{what}. Made for {made_for(run)}" if run.group_key else what


def device_of(run: store.StoredRun) -> str:
    known = run.environment
    name = str(known.get("device_name", accelerators.device_in_words(run.config.device)))
    if not known.get("gpu_uuid"):
        return name
    return f"{name} ({known.get('device', run.config.device)}, {resources.short_uuid(str(known['gpu_uuid']))})"


def made_for(run: store.StoredRun) -> str:
    """Returns what a run of a group was made for, and which part of it this is."""
    group = run.group
    setting = store.read_role(run.role)[0]
    if group is None:
        return f"{escaped(run.group_key)}, which this version of vitprof does not know"
    if group.run_id is not None:
        return f"{group.kind} of run {group.run_id}: {escaped(run.role)}"
    if group.kind == "tournament":
        return f"tournament {group.of}: {escaped(key_in_words(setting))}"
    return f"tuning {escaped(run.config.strategy)}: {escaped(setting or run.role)}"


def draw_headline(run: store.StoredRun, series: resources.RunSeries) -> None:
    with card(NEUTRAL):
        if run.live:
            st.container(key="so-far").markdown(":material/pending: **So far**")
        st.markdown(headline(run, totals_of(run, series)))


def totals_of(run: store.StoredRun, series: resources.RunSeries) -> summary.Totals:
    return series.totals if run.summary is None else summary.Totals.of(run.summary)


def headline(run: store.StoredRun, totals: summary.Totals) -> str:
    if not totals.steps and run.live:
        return "Warming up: the first steps are recorded and left out of the figures."
    if not totals.steps:
        return "The run ended within its warm-up, so there are no steady-state figures. Give it more steps."
    few = " Too few steady steps to conclude from." * (totals.steps < thresholds.MIN_STEPS)
    if run.config.loader_only:
        speed = formats.number(totals.samples_per_s, "samples/s")
        return f"The loader alone delivers **{speed}**, over {totals.steps:,} steps.{few}"
    wait, idle, exposed = (
        formats.percent(totals.share(s))
        for s in (totals.data_wait_s, totals.gap_s, totals.exposed_wait_s)
    )
    rest = ", in the rest the device still had work" * (
        totals.data_wait_s > 1.1 * totals.exposed_wait_s
    )
    return (
        f"The device was idle **{idle}** of the time, over {totals.steps:,} steps. The training loop waited for data "
        f"{wait} of the time; **{exposed}** cost device time{rest}.{few}"
    )


def _of_idle(run: store.StoredRun) -> str:
    """Returns what of a run's idle time was for data, or how long the device was idle inside the steps, too."""
    if not (found := run.verdict) or found.kind == "inconclusive":
        return ""
    if found.kind == "launch-bound" and found.launch_frac > 0:
        return f"+ {formats.percent(found.launch_frac)} in steps"
    return f"{formats.percent(found.idle_frac)} {'data and copies' if 'and copies' in found.sentence else 'for data'}"


def draw_tiles(run: store.StoredRun, series: resources.RunSeries) -> None:
    totals = totals_of(run, series)
    telemetry = series.telemetry()
    simulated = "simulated" if is_simulated_run(run) else None
    speed = formats.number(totals.samples_per_s)
    tiles = [("Samples/s", speed, simulated, "Throughput: samples in a second.")]
    if not run.config.loader_only:
        wait, idle, exposed = (
            formats.percent(totals.share(s))
            for s in (totals.data_wait_s, totals.gap_s, totals.exposed_wait_s)
        )
        tiles += [
            (
                "Data wait",
                wait,
                f"{exposed} cost device time" if exposed != formats.NOT_AVAILABLE else None,
                WAIT_HELP,
            ),
            ("Device idle", idle, _of_idle(run) or simulated, IDLE_HELP),
        ]
        utilisation, active = _utilisation(run, telemetry)
        if math.isfinite(utilisation) or simulated or active:
            text = "Mean of NVML's utilisation while training: the share of time in which any kernel ran."
            text += (
                f" SM activity: {escaped(active.words)}. That is the {MEANING}." if active else ""
            )
            below = (
                f"SM activity {formats.percent(active.active_pct / 100)}" if active else simulated
            )
            tiles.append(("GPU-util", formats.percent(utilisation / 100), below, text))
    peaks = [(label, arrays.highest(telemetry[name]), whose) for label, name, whose in MEMORY_TILES]
    label, peak, whose = next((p for p in peaks if math.isfinite(p[1])), peaks[-1])
    text = f"Highest value seen while the job ran, {whose}."
    if run.summary is not None:
        text += "".join(
            f" {m.name}: {formats.size(m.n_bytes)}, {m.meaning}."
            for m in device_memory(run.summary)
        )
    tiles.append((label, formats.size(peak), None, text))
    with st.container(key="tiles"):
        columns = st.columns(len(tiles))
    for column, (name, value, mark, text) in zip(columns, tiles, strict=True):
        column.metric(
            name,
            value,
            mark,
            delta_color="off",
            delta_arrow="off",
            help=text,
            border=True,
            height="stretch",
        )


def _utilisation(run: store.StoredRun, telemetry: arrays.Series) -> tuple[float, SmActivity]:
    if run.summary is not None:
        return run.summary.gpu_util_pct_mean, sm_activity(run.summary, run.environment)
    since_s = math.inf if run.training_since_s is None else run.training_since_s
    utilisation = arrays.mean(telemetry["gpu_util_pct"][telemetry["t_s"] >= since_s])
    return utilisation, sm_activity_so_far(telemetry, since_s, run.environment)


def is_simulated_run(run: store.StoredRun) -> bool:
    return accelerators.is_simulated(str(run.environment.get("device") or run.config.device))


def draw_gaps(
    run: store.StoredRun,
    series: resources.RunSeries,
    *,
    on_pick: OnPick = None,
    at: int | None = None,
) -> None:
    totals = totals_of(run, series)
    steps = series.steps()
    origin_s = run.t_origin_s or 0.0
    notes = gap_notes(steps, origin_s, view_of(f"live-{GAPS.key}"), totals.share(totals.gap_s))
    mark = math.nan if at is None else float(steps["compute_start_s"][at]) - origin_s
    draw_chart(GAPS, run, steps, on_pick=on_pick, notes=notes, mark=mark)


def draw_chart(
    chart: LiveChart,
    run: store.StoredRun,
    series: arrays.Series,
    *,
    on_pick: OnPick = None,
    **more: Any,
) -> None:
    key = f"live-{chart.key}"
    hint = " Click a step for its figures." if on_pick is not None else ""
    st.header(chart.title, anchor=False, help=chart.help + hint)
    cache: resources.PointCache = st.session_state.setdefault("point-cache", resources.PointCache())
    points = cache.points(chart, run.id, series, run.t_origin_s or 0.0, view_of(key))
    figure = live_figure(chart, points, each=cache.steps_each(chart), **more)
    height = 340 if chart is GAPS else 260
    draw_growing(
        figure,
        key=key,
        run=str(run.id),
        alt=chart.alt,
        height=height,
        grows=run.live,
        on_pick=on_pick,
    )


def card(colour: str) -> AbstractContextManager[Any]:
    st.html(f"<style>.st-key-verdict {{ border-left: 6px solid {colour} }}</style>")
    return st.container(border=True, key="verdict", gap="small")


CANCEL_HELP = "Takes the run out of the queue. It has not begun, so nothing is lost."
NOW_HELP = (
    "Does not wait for jobs of other programs: they run at the same time and slow each other down. Both runs keep a "
    "notice of that."
)
SHARE_HELP = (
    "Runs on different devices run side by side where all of them were started with *Share the machine* (under "
    "*More*). Such a run says so, and Compare warns."
)


def draw_queued(run: store.StoredRun) -> None:
    before = scheduling.ahead_of(resources.store(), run.id)
    if not before:  # it starts in a moment: no other button takes Stop's place for that
        st.progress(0.0, text="starting")
        return
    with st.container(horizontal=True, vertical_alignment="center", key="queued"):
        reason = scheduling.why_waiting(before, shares=run.config.share_machine)
        text = f"{reason[0].upper()}{reason[1:]}. It is {formats.ordinal(len(before) + 1)} in the queue."
        st.markdown(f":material/hourglass_empty: {escaped(text)}", width="content", help=SHARE_HELP)
        jobs = resources.manager()
        if not jobs.may_stop(run.id):
            return
        act_button("Cancel", "cancel-button", "close", lambda: _cancel(run), CANCEL_HELP)
        own_program = not all(ahead.owner for ahead in before)
        if not own_program:
            act_button(
                "Run now", "run-now-button", "fast_forward", lambda: jobs.run_now(run.id), NOW_HELP
            )


def _cancel(run: store.StoredRun) -> None:
    resources.manager().stop(run.id)
    st.query_params.pop(widgets.RUN, None)  # the page then shows the run that is running


def draw_start(run: store.StoredRun, now: float) -> None:
    copies = run.config.location not in (None, "disk")
    phases = summary.start_phases(
        run.t_origin_s, run.phases, run.training_since_s, now, copies=copies
    )
    with st.container(horizontal=True, key="start-phases"):
        for phase in phases:
            icon = ":material/pending:" if phase.running else ":material/check_circle:"
            took = escaped(formats.seconds(phase.seconds) if phase.seconds >= 0.05 else "0.0 s")
            line = f"{icon} {summary.START_WORDS[phase.name]} {took}"
            if math.isnan(phase.seconds):
                line = f":gray[:material/radio_button_unchecked: {summary.START_WORDS[phase.name]}]"
            st.markdown(line, width="content")
