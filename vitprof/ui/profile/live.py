"""The top of the Profile page for a run, and its charts over time.

The top goes from the run's place in the queue to its figures.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
from vitprof.config import accelerators, bounds, models, own_script
from vitprof.cores import job_cores
from vitprof.experiments import answers
from vitprof.jobs import scheduling
from vitprof.recording.shared_machine import as_shown
from vitprof.ui import answer_card, resources, widgets
from vitprof.ui.live_chart import Pick, draw_growing, view_of
from vitprof.ui.texts import act_button, escaped, guarded

OnPick = Callable[[Pick], None] | None


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at the top of the page."""

    name: str
    value: str
    below: str | None
    """What stands below it, smaller; None for nothing."""
    help: str


FEW_CORES = 4
REFRESH_S = 2.0 if job_cores() <= FEW_CORES else 0.5
"""Seconds between two refreshes of a live run. Where there are few cores, a browser on the same
machine would take too much of them."""
MEMORY_TILES = (
    ("GPU memory, peak", "gpu_mem_job_bytes", "of the job's processes, by NVML"),
    ("GPU memory in use", "gpu_mem_used_bytes", "of all processes on the GPU, by NVML"),
    ("Memory, peak", "job_rss_bytes", "of the job's processes, resident in RAM"),
)
"""What the memory tile shows, the first of these that could be read: label, column, and whose
memory it is."""
STEP_HELP = "Mean time of a step while training, waits and epoch starts included."
HIDDEN_RATIO = 1.1
"""Data wait, over what of it left the device idle, from which the rest is named."""
NEW_LINE = "  \n"
"""Ends a line in Markdown without beginning a paragraph."""
FACTS = ("copied", "throttled", "read from a trace", "not in the trace", "the trace has no work")
"""How notices begin that only state where the data, or the figures, are from; all others are warnings."""
STAGES = {
    "preparing": "preparing the data",
    "staging": "copying the data",
    "evaluating": "evaluating on the test set",
}
"""Stages that are not said by their own name."""


@guarded
def draw_live(run_id: int, status: str) -> None:
    """Draws a live run; the page refreshes this part.

    `status`: the one that the rest was drawn for.
    """
    run = resources.store().run(run_id)
    if run.status != status:  # what is above has other buttons then
        st.rerun(scope="app")
    series = resources.series(run_id)
    series.refresh(run.facts)
    draw_state(run, time.perf_counter(), _last_step_s(series))
    begun = len(series.steps()["step"]) > 0
    if begun:
        draw_headline(run, series)
        draw_tiles(run, series)
    elif run.status == "running":
        draw_start(run, time.perf_counter())
    # where the tabs will be when the run has ended: the charts then stay in place
    with st.container(key="set-up"):
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
    """Draws the other charts with figures, two in a row. `at`: the step that is looked at."""
    steps = series.steps()
    telemetry = series.telemetry()
    # for a slice of a GPU in MIG mode NVML reports the memory, but no utilisation
    gpu_known = any(
        np.isfinite(telemetry[name]).any() for name in ("gpu_util_pct", "gpu_mem_used_bytes")
    )
    mark = math.nan
    moment_s = math.nan
    if at is not None:
        mark = at
        moment_s = float(steps["compute_start_s"][at]) - (run.t_origin_s or 0.0)
    by_step = [BATCHES]
    if not run.config.loader_only and np.isfinite(steps["loss"]).any():
        by_step.append(LOSSES)
    over_time = [GPU, CPU] if gpu_known else [CPU]
    drawn = [
        partial(draw_chart, chart, run, steps, on_pick=on_pick, mark=mark) for chart in by_step
    ]
    drawn += [partial(draw_chart, chart, run, telemetry, mark=moment_s) for chart in over_time]
    for column, draw in zip(cycle(st.columns(2)), drawn, strict=False):
        with column:
            draw()
    if missing := run.environment.get("gpu_not_available"):
        st.caption(escaped(f"Not available for this GPU: {missing}."))
    elif not gpu_known and not resources.gpus() and not is_simulated_run(run):
        st.caption("No NVIDIA GPU here: device figures are not available.")


def _last_step_s(series: resources.RunSeries) -> float:
    """Returns when the last step that is known ended, on the clock of `training_since_s`; NaN before
    the first one."""
    steps = series.steps()
    if not len(steps["step"]):
        return math.nan
    return float(steps["t_start_s"][-1] + steps["step_s"][-1])


def draw_state(run: store.StoredRun, now: float, last_step_s: float = math.nan) -> None:
    """Draws the time left while the run is live (`now` is as `training_since_s`), then how it
    ended. `last_step_s`: when its last step ended, NaN where that is not known.
    """
    if reason := resources.manager().why_away(run.id):
        st.warning(
            f"The run store cannot be written ({escaped(reason)}). Nothing is lost: what the run "
            "measures is kept, and written when the store is back. Until then this page shows what "
            "was written before."
        )
    if run.status == "queued":
        draw_queued(run)
    elif run.status == "running":
        st.progress(min(run.progress or 0.0, 1.0), text=_progress_words(run, now, last_step_s))
    elif run.status == "stopped":
        why = f": {escaped(run.error)}" if run.error else ""
        st.warning(f"Stopped{why}. What was measured until then is kept.")
    elif run.status != "done":
        st.error(f"{run.status.capitalize()}: {escaped(run.error)}")
    facts = [notice for notice in as_shown(run.notices) if notice.startswith(FACTS)]
    warnings = [notice for notice in as_shown(run.notices) if not notice.startswith(FACTS)]
    # one box for all of a kind: with a box for each, the first chart was below the screen
    for draw_box, notices in ((st.warning, warnings), (st.info, facts)):
        if notices:
            draw_box(NEW_LINE.join(escaped(formats.sentence(notice)) for notice in notices))


def _progress_words(run: store.StoredRun, now: float, last_step_s: float) -> str:
    """Returns what a run is doing, and about how long it goes on, or how long it has."""
    words = STAGES.get(run.stage, escaped(run.stage))
    if run.message:
        words += f": {escaped(run.message)}"
    if run.training_since_s is None:
        return words
    trained_s = now - run.training_since_s
    if own_script.is_own_script(run.config):  # how long it will go on is not known
        return f"{words}, for {formats.seconds(max(trained_s, 0.0))}"
    fraction = run.progress or 0.0
    if run.stage == "training" and fraction > 0:
        remaining_s = seconds_left(run, trained_s, last_step_s - run.training_since_s)
        words += f", about {formats.rough_time(max(remaining_s, 0.0))} left"
    return words


def seconds_left(run: store.StoredRun, trained_s: float, stepped_s: float) -> float:
    """Returns for how long a run trains on: until its seconds are over, or its steps are made,
    whichever is later.

    `trained_s`: seconds of training so far. `stepped_s`: those up to the end of the last step; NaN
    where that is not known. Between two steps the time left falls by the second, else it would rise
    until the next step comes.
    """
    fraction = run.progress or 0.0
    if not 0 < stepped_s <= trained_s:  # also NaN
        stepped_s = trained_s
    # the share of steps that are made, where they come after the seconds; then that is the progress
    of_steps_s = stepped_s / fraction - trained_s
    seconds = run.config.seconds
    if seconds is None:
        return of_steps_s
    of_seconds_s = seconds - trained_s
    if not run.config.least_steps:
        return of_seconds_s
    longest_s = bounds.LONGEST_TIMES * seconds - trained_s
    return min(max(of_seconds_s, of_steps_s), longest_s)


def set_up(run: store.StoredRun) -> str:
    """Returns what ran where, and how long it took once it is done, in one line of Markdown."""
    config = run.config
    own = own_script.is_own_script(run.config)
    where = escaped(device_of(run))
    if own and config.dataset == own_script.UNKNOWN_DATA:  # it has just started
        return "A script of your own, watched from inside"
    if own:
        isolation = "a script of your own, watched from inside"
    elif config.isolation == "process":
        isolation = "in a process of its own"
    else:
        isolation = "in a thread of this dashboard, whose own work can show up as stalls"
    done = ""
    if run.status == "done" and run.summary is not None:
        done = f"Done in {formats.seconds(run.summary.wall_s)}. "
    elif run.status == "done":
        done = "Done. "
    if config.loader_only:
        trained = "no training"
    else:
        trained = f"trained on {where}"
        if not own:
            trained = f"{models.model_words(config.model)}, {config.precision} on {where}"
        n_ranks = int(run.environment.get("world_size") or 1)
        if n_ranks > 1:
            trained += f", rank {run.environment.get('rank', 0)} of {n_ranks}"
    what = f"{done}Data set {escaped(config.dataset)}, {trained}, {isolation}"
    if run.group_key:
        what += f". Made for {made_for(run)}"
    return what


def device_of(run: store.StoredRun) -> str:
    """Returns the device's name, with its number and UUID where it is a GPU."""
    known = run.environment
    name = str(known.get("device_name", accelerators.device_in_words(run.config.device)))
    if not known.get("gpu_uuid"):
        return name
    uuid = resources.short_uuid(str(known["gpu_uuid"]))
    return f"{name} ({known.get('device', run.config.device)}, {uuid})"


def made_for(run: store.StoredRun) -> str:
    """Returns what a run of a group was made for, and which part of it this is."""
    group = run.group
    setting = store.read_role(run.role)[0]
    if group is None:
        return f"{escaped(run.group_key)}, which this version of vitprof does not know"
    if group.run_id is not None:
        return f"{group.kind} of run {group.run_id}: {escaped(run.role)}"
    return f"tournament {group.of}: {escaped(key_in_words(setting))}"


def draw_headline(run: store.StoredRun, series: resources.RunSeries) -> None:
    """Draws the card of a run that goes on, or that trained nothing: what is known so far."""
    totals = totals_of(run, series)
    with card(NEUTRAL):
        line = headline(run, totals)
        if run.live:
            line = f":material/pending: **So far.** {line}"
        with st.container(key="verdict-line"):
            st.markdown(line)
        if run.live and not run.config.loader_only:
            so_far = answers.answer_of_live(run, totals)
            if so_far is not None:
                answer_card.draw_answer(so_far, no_fix="named when the run has ended")


def totals_of(run: store.StoredRun, series: resources.RunSeries) -> summary.StepSums:
    if run.summary is None:  # it is live: what was read so far
        return series.totals
    return summary.StepSums.of(run.summary)


def headline(run: store.StoredRun, totals: summary.StepSums) -> str:
    if not totals.steps and run.live:
        return "Warming up: the first steps are recorded and left out of the figures."
    if not totals.steps:
        return "The run ended within its warm-up, so there are no steady-state figures. Give it more steps."
    few = ""
    if totals.steps < thresholds.MIN_STEPS:
        few = " Too few steady steps to conclude from."
    if run.config.loader_only:
        speed = formats.number(totals.samples_per_s, "samples/s")
        return f"The loader alone delivers **{speed}**, over {totals.steps:,} steps.{few}"
    wait = formats.percent(totals.share(totals.data_wait_s))
    if not totals.data_wait_s > HIDDEN_RATIO * totals.exposed_wait_s:
        return f"The training loop waited for data {wait} of the time.{few}"
    idle = formats.percent(totals.share(totals.exposed_wait_s))
    return (
        f"The training loop waited for data {wait} of the time; the device was idle for {idle}, "
        f"because it had queued work for the rest.{few}"
    )


def draw_tiles(run: store.StoredRun, series: resources.RunSeries) -> None:
    """Draws up to four figures over the steady state so far: those that this kind of run has. How
    long the device waited is in the card above them."""
    totals = totals_of(run, series)
    telemetry = series.telemetry()
    simulated = "simulated" if is_simulated_run(run) else None
    speed = formats.number(totals.samples_per_s)
    tiles = [Tile("Samples/s", speed, simulated, "Throughput: samples in a second.")]
    if not run.config.loader_only:
        n_steps = run.verdict.n_judged if run.verdict is not None else 0
        step_s = summary.mean_step_s(run.config, run.summary, totals, n_steps)
        tiles.append(Tile("Step, mean", formats.seconds(step_s), None, STEP_HELP))
        utilisation, active = _utilisation(run, telemetry)
        if math.isfinite(utilisation) or simulated or active:
            about = "Mean of NVML's utilisation while training: the share of time in which any kernel ran."
            if simulated:
                about = (
                    "Share of the time in which the simulated GPU computed, as NVML would count it."
                )
            below = simulated
            if active:
                about += f" SM activity: {escaped(active.words)}. That is the {MEANING}."
                below = f"SM activity {formats.percent(active.active_pct / 100)}"
            tiles.append(Tile("GPU-util", formats.percent(utilisation / 100), below, about))
    tiles.append(_memory_tile(run, telemetry))
    with st.container(key="tiles"):
        columns = st.columns(len(tiles))
    for column, tile in zip(columns, tiles, strict=True):
        column.metric(
            tile.name,
            tile.value,
            tile.below,
            delta_color="off",
            delta_arrow="off",
            help=tile.help,
            border=True,
            height="stretch",
        )


def _memory_tile(run: store.StoredRun, telemetry: arrays.Series) -> Tile:
    """Returns the first of `MEMORY_TILES` that could be read, else the last."""
    peaks = [(label, arrays.highest(telemetry[name]), whose) for label, name, whose in MEMORY_TILES]
    known = [tile for tile in peaks if math.isfinite(tile[1])]
    label, peak, whose = known[0] if known else peaks[-1]
    about = f"Highest value seen while the job ran, {whose}."
    if run.summary is not None:
        for part in device_memory(run.summary):
            about += f" {part.name}: {formats.size(part.n_bytes)}, {part.meaning}."
    return Tile(label, formats.size(peak), None, about)


def _utilisation(run: store.StoredRun, telemetry: arrays.Series) -> tuple[float, SmActivity]:
    """Returns NVML's utilisation while training, in percent, and the SMs' activity; so far, of a
    live run.
    """
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
    mark = math.nan
    if at is not None:
        mark = float(steps["compute_start_s"][at]) - origin_s
    draw_chart(GAPS, run, steps, on_pick=on_pick, notes=notes, mark=mark)


def draw_chart(
    chart: LiveChart,
    run: store.StoredRun,
    series: arrays.Series,
    *,
    on_pick: OnPick = None,
    **more: Any,
) -> None:
    """Draws one live chart: its title with help, and the plot, in finer groups where the user
    zoomed in.
    """
    key = f"live-{chart.key}"
    about = chart.help
    if on_pick is not None:
        about += " Click a step for its figures."
    st.header(chart.title, anchor=False, help=about)
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
    """Returns the frame around the sentence on a run, the same while it is live and when it has
    ended.
    """
    st.html(f"<style>.st-key-verdict {{ border-left: 6px solid {colour} }}</style>")
    return st.container(border=True, key="verdict", gap="small")


CANCEL_HELP = "Takes the run out of the queue. It has not begun, so nothing is lost."
NOW_HELP = (
    "Does not wait for jobs of other programs: they run at the same time and slow each other down. "
    "Both runs keep a notice of that."
)
SHARE_HELP = (
    "Runs on different devices run side by side where all of them were started with *Share the "
    "machine* (under *Advanced*). Such a run says so, and Compare warns."
)


def draw_queued(run: store.StoredRun) -> None:
    """Draws what a queued run waits for and why, its place in the queue, and Cancel."""
    before = scheduling.ahead_of(resources.store(), run.id)
    if not before:  # it starts in a moment: no other button takes Stop's place for that
        st.progress(0.0, text="starting")
        return
    with st.container(horizontal=True, vertical_alignment="center", key="queued"):
        reason = scheduling.why_waiting(before, shares=run.config.share_machine)
        text = f"{formats.sentence(reason)} It is {formats.ordinal(len(before) + 1)} in the queue."
        st.markdown(f":material/hourglass_empty: {escaped(text)}", width="content", help=SHARE_HELP)
        jobs = resources.manager()
        if not jobs.may_stop(run.id):
            return
        act_button("Cancel", "cancel-button", "close", lambda: _cancel(run), CANCEL_HELP)
        of_other_programs = all(job.owner for job in before)
        if of_other_programs:
            act_button(
                "Run now", "run-now-button", "fast_forward", lambda: jobs.run_now(run.id), NOW_HELP
            )


def _cancel(run: store.StoredRun) -> None:
    resources.manager().stop(run.id)
    st.query_params.pop(widgets.RUN, None)  # the page then shows the run that is running


def draw_start(run: store.StoredRun, now: float) -> None:
    """Draws the phases of a run's start: those that are over, the one that is running, those to
    come.
    """
    copies = run.config.location not in (None, "disk")
    phases = summary.start_phases(
        run.t_origin_s, run.phases, run.training_since_s, now, copies=copies
    )
    with st.container(horizontal=True, key="start-phases"):
        for phase in phases:
            words = summary.START_WORDS[phase.name]
            if math.isnan(phase.seconds):  # to come
                line = f":gray[:material/radio_button_unchecked: {words}]"
            else:
                icon = ":material/pending:" if phase.running else ":material/check_circle:"
                # not in ms: a phase that has just begun would flicker
                took = formats.seconds(phase.seconds) if phase.seconds >= 0.05 else "0.0 s"
                line = f"{icon} {words} {escaped(took)}"
            st.markdown(line, width="content")
