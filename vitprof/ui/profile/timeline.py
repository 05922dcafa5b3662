"""The tab Timeline: charts over time, a window of single steps, the one step that was clicked with the chain of its
batch, and where the time of the whole run went.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.analysis.arrays import Series, median
from vitprof.analysis.timing.loading import STAGE_WORDS, synchronous
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.timeline import OneStep, one_step, step_at, timeline
from vitprof.charts.live import GAPS
from vitprof.charts.timeline import batch_chain, timeline_chart
from vitprof.recording.columns import RunSummary
from vitprof.store import StoredRun
from vitprof.ui import resources, tables
from vitprof.ui.findings import all_columns, idle_of
from vitprof.ui.live_chart import ChartFeed, Pick, chart_state, live_chart, plot
from vitprof.ui.profile.live import draw_chart, draw_others, for_session
from vitprof.ui.texts import guarded

WINDOW = 30
"""Steps in the window: about as many as can be told apart."""
BEFORE = 3
"""Steps drawn before the one that is looked at."""
WINDOW_HEIGHT = 220
WINDOW_HELP = (
    "The loop's line: data wait, host work (launches and all that Python does), recording. The copy's line. The "
    "device's line: compute, and gaps in the colour of what they waited for. Where it was measured, launch bubbles: "
    "how long it waited for launches inside the step, drawn in one piece. Click a step for its figures; drag "
    "to zoom."
)


def draw_timeline(run: StoredRun) -> None:
    """Draws the whole tab as one fragment: a click or a zoom redraws nothing else."""
    st.fragment(_draw)(run)


@guarded
def _draw(run: StoredRun) -> None:
    series = resources.series(run.id)
    series.refresh(run.facts)
    chosen = Chosen(run)
    if not run.config.loader_only:
        draw_chart(GAPS, run, series.steps(), on_pick=chosen.pick_moment)
    _draw_window(run, chosen)
    draw_figures(run, chosen.at, largest=chosen.at == chosen.worst)
    draw_chain(run, chosen.at, key="step-chain")
    draw_others(run, series, on_pick=chosen.pick_position)
    draw_account(run)


class Chosen:
    """The step of a run that this session looks at, and the window around it."""

    def __init__(self, run: StoredRun) -> None:
        self.steps: Series = all_columns(run.id)
        self._origin_s = run.t_origin_s or 0.0
        idle = None if run.config.loader_only else idle_of(run.id)
        self.worst = idle.worst if idle is not None else int(np.nanargmax(np.nan_to_num(self.steps["step_s"])))
        self.key, self._window = f"step-{run.id}", f"window-{run.id}"
        if self.key not in st.session_state:
            self.show(self.worst)

    @property
    def last(self) -> int:
        """Position of the run's last step."""
        return len(self.steps["step"]) - 1

    @property
    def at(self) -> int:
        """Position of the step in the series."""
        return self._position(st.session_state[self.key])

    @property
    def first(self) -> int:
        """Position of the window's first step. It moves only where the chosen step would be outside the window."""
        first, most = int(st.session_state.get(self._window, -WINDOW)), max(self.last + 1 - WINDOW, 0)
        if not first <= self.at < first + WINDOW:
            first = self.at - BEFORE
        st.session_state[self._window] = first = min(max(first, 0), most)
        return first

    def show(self, at: int) -> None:
        """Makes the step at this position the one to look at."""
        st.session_state[self.key] = int(self.steps["step"][min(max(at, 0), self.last)])

    def pick_moment(self, pick: Pick) -> None:
        """Shows the step clicked in the chart of idle gaps, whose second trace has the data waits."""
        self.show(step_at(self.steps, pick.x + self._origin_s, of_wait=pick.trace == 1))

    def pick_position(self, pick: Pick) -> None:
        """Shows the step clicked in a chart over steps."""
        self.show(round(pick.x))

    def pick_number(self, pick: Pick) -> None:
        """Shows the step clicked in the window, whose bars have their step's number."""
        self.show(self._position(pick.data))

    def _position(self, number: float) -> int:
        return min(int(np.searchsorted(self.steps["step"], number)), self.last)


def _draw_window(run: StoredRun, chosen: Chosen) -> None:
    """Draws the controls that move along the run, and the steps around the chosen one."""
    at = chosen.at
    largest = ("Largest gap", "The step before which the device was idle longest.")
    if run.config.loader_only:
        largest = ("Longest step", "The step that took longest.")
    st.header("Step by step", anchor=False, help=None if run.config.loader_only else WINDOW_HELP)
    moves: tuple[tuple[str, str, int, str], ...] = (
        ("Earlier", ":material/chevron_left:", at - WINDOW, f"{WINDOW} steps back."),
        (largest[0], ":material/search:", chosen.worst, largest[1]),
        ("Later", ":material/chevron_right:", at + WINDOW, f"{WINDOW} steps on."),
    )
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        number = chosen.steps["step"]
        st.number_input(
            "Step",
            min_value=int(number[0]),
            max_value=int(number[-1]),
            step=1,
            key=chosen.key,
            help="Its figures and the chain of its batch are below. A click on a step in a chart sets it too.",
            width=160,
        )
        for words, icon, to, text in moves:
            st.button(words, icon=icon, key=f"window-{words}", on_click=chosen.show, args=(to,), help=text)
    if run.config.loader_only or idle_of(run.id) is None:
        return
    first = chosen.first
    figure = timeline_chart(
        timeline(chosen.steps, run.phases, first, first + WINDOW),
        origin_s=run.t_origin_s or 0.0,
        mark=int(chosen.steps["step"][at]),
    )
    state = chart_state("timeline")
    update = for_session("feed-timeline", ChartFeed).update(
        figure.to_dict(),
        run=f"{run.id} from {first}",
        alt=f"What loop, copy and device did, step by step, for {WINDOW} steps from step {first:,} on",
        resync=state.resync,
    )
    live_chart(update, key="timeline", height=WINDOW_HEIGHT, on_pick=chosen.pick_number)


CHAIN_HEIGHT = 230
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("Data wait", "data_wait_s", "The loop was blocked in next(loader) for this step's batch."),
    ("Copy (H2D)", "h2d_s", "The batch's copy to the device."),
    ("Compute", "compute_s", "The device worked on the step."),
    ("Idle gap", "gap_s", "The device computed nothing before the step."),
    ("Step", "step_s", "From the end of the step before to the end of this one, on the device."),
)
"""Label, column and meaning of the figures of a step."""
OF_LOADING = ("data_wait_s", "step_s")
"""The columns of a run that only loaded."""


def draw_figures(run: StoredRun, at: int, *, largest: bool) -> None:
    """Draws the figures of the step at this position, each beside the run's median. `largest`: whether it is the step
    after the run's largest gap.
    """
    steps = all_columns(run.id)
    usual = _medians(steps)
    stands_out = largest and not run.config.loader_only and steps["gap_s"][at] > usual["gap_s"]
    st.header(f"Step {int(steps['step'][at]):,}{', the largest gap of this run' if stands_out else ''}", anchor=False)
    with st.container(horizontal=True, gap="small", key="step-figures"):
        for label, column, meaning in FIGURES:
            if run.config.loader_only and column not in OF_LOADING:
                continue
            value = float(steps[column][at])
            if math.isfinite(value):
                st.metric(
                    label,
                    formats.seconds(value),
                    f"median {formats.seconds(usual[column])}",
                    delta_color="off",
                    delta_arrow="off",
                    help=f"{meaning} The median is that of the steady steps.",
                    width="content",
                )


def _medians(steps: Series) -> dict[str, float]:
    keep = steady_state(steps)
    return {column: median(np.asarray(steps[column][keep])) for _, column, _ in FIGURES}


def draw_chain(run: StoredRun, at: int, *, key: str) -> None:
    """Draws how the batch of the step at this position was made, waited for, copied and computed."""
    steps = all_columns(run.id)
    step = one_step(steps, at)
    text = chain_sentence(run, step)
    line = timeline(steps, run.phases, at, at + 1)
    figure = batch_chain(step, line.only("host") if run.config.loader_only else line)
    if figure.data:
        alt = f"The chain of step {step.number:,}: loader, loop, copy and device. {text}"
        plot(figure, height=CHAIN_HEIGHT, key=key, alt=alt)
    st.caption(text)


def chain_sentence(run: StoredRun, step: OneStep) -> str:
    """Returns where the batch was made, how long that took, and whether the loop had to wait for it, in sentences."""
    in_loop = synchronous(run.config)
    sentences = [_made(step, in_loop, run.config.loader_times)]
    decoding = step.decode_wait_s if step.decode_wait_s > 0 else 0.0
    waited = formats.seconds(step.data_wait_s - decoding)
    if not in_loop and step.lay_ready_s > 0:
        ready = f"It had been ready for {formats.seconds(step.lay_ready_s)} when the loop asked for it"
        sentences.append(f"{ready}, and was handed over in {waited}.")
    elif step.data_wait_s > decoding:
        sentences.append(f"The loop waited {waited} for it.")
    if decoding:
        sentences.append(f"Then the device waited {formats.seconds(decoding)} until it was decoded there.")
    hidden = step.data_wait_s - step.exposed_wait_s
    if hidden > 0 and not run.config.loader_only:
        how_long = "all that time" if step.exposed_wait_s <= 0 else f"for {formats.seconds(hidden)} of that"
        sentences.append(f"The device still had work {how_long}.")
    return " ".join(sentences)


def _made(step: OneStep, in_loop: bool, measured: bool) -> str:
    if not math.isfinite(step.made_s):
        reason = "the loader cannot tell" if measured else "*Measure inside the loader* was off"
        return f"How this batch was made is not known: {reason}."
    who = "The loop itself" if in_loop else "The loader" if step.worker is None else f"Worker {step.worker}"
    stages = sorted(step.stages_s.items(), key=lambda stage: stage[1], reverse=True)
    parts = [f"{STAGE_WORDS[name]} {formats.seconds(s)}" for name, s in stages if s > 0 and name != "hand_over"]
    return f"{who} made this batch in {formats.seconds(step.made_s)}{': ' + ', '.join(parts) if parts else ''}."


@guarded
def draw_account(run: StoredRun) -> None:
    """Draws where the run's time went apart from the steady state, and other figures of the whole run."""
    s = run.summary
    if s is None or not s.n_steps:
        return
    rows = [(words, form(getattr(s, field)), meaning(s, field)) for words, field, form in WHOLE_RUN]
    shown = [row for row in rows if row[1] != formats.NOT_AVAILABLE]
    with st.expander(f"The whole run: {formats.seconds(s.wall_s)}", icon=":material/timer:"):
        tables.show(pd.DataFrame(shown, columns=["what", "how much", "meaning"]), key="whole-run")


def _milliseconds(value: float) -> str:
    return formats.seconds(value / 1e3)


def _unless_0(form: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: form(value) if value else formats.NOT_AVAILABLE


WHOLE_RUN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Preparing the data", "prepare_s", formats.seconds),
    ("Copying the data", "stage_s", _unless_0(formats.seconds)),
    ("Start-up", "startup_s", formats.seconds),
    ("First batch", "first_batch_s", formats.seconds),
    ("Epoch restart", "epoch_restart_s", formats.seconds),
    ("A step, median", "step_ms_median", _milliseconds),
    ("A step, 95th percentile", "step_ms_p95", _milliseconds),
    ("An epoch", "epoch_s", formats.seconds),
    ("Evaluation", "evaluate_s", formats.seconds),
    ("Shut-down", "shutdown_s", formats.seconds),
    ("From start to end", "wall_s", formats.seconds),
    ("Test accuracy", "test_accuracy", formats.percent),
    ("CPU for each sample", "cpu_s_per_sample", formats.seconds),
    ("Storage on disk", "storage_bytes", formats.size),
    ("Cache hit rate", "cache_hit_frac", formats.percent),
    ("Unreadable", "n_unreadable", _unless_0("{:,}".format)),
)
"""Label of a figure of the whole run, its field of the summary, and its form."""


def meaning(s: RunSummary, field: str) -> str:
    """Returns what a figure means, with what it rests on."""
    about = {
        "stage_s": f" {formats.size(s.stage_bytes)}.",
        "step_ms_median": f" n = {s.n_steady_steps:,} steps.",
        "epoch_s": f" {s.n_epochs_measured} measured." if s.n_epochs_measured else " Calculated from samples/s.",
        "storage_bytes": _storage_help(s),
    }
    return tables.help_of(field) + about.get(field, "")


def _storage_help(s: RunSummary) -> str:
    """Returns how long the storage took to make, and how much of it was in the page cache, where known."""
    preparing = f" Making it took {formats.seconds(s.storage_prepare_s)}." if s.storage_prepare_s else ""
    cached = f" {formats.percent(s.page_cached_frac)} of it was in the page cache when training began."
    return preparing + (cached if math.isfinite(s.page_cached_frac) else "")
