"""The tab Timeline: charts over time, a window of single steps, and the one step that was clicked."""

from __future__ import annotations

import numpy as np
import streamlit as st

from vitprof import charts
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.one_step import step_at
from vitprof.analysis.timing.timeline import timeline
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.findings import all_columns, idle_of
from vitprof.ui.live_chart import ChartFeed, Pick, chart_state, live_chart
from vitprof.ui.profile.account import draw_account
from vitprof.ui.profile.live import draw_chart, draw_others, for_session
from vitprof.ui.profile.step import draw_chain, draw_figures
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
        draw_chart(charts.GAPS, run, series.steps(), on_pick=chosen.pick_moment)
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
        found = None if run.config.loader_only else idle_of(run.id)
        self.worst = found.worst if found is not None else int(np.nanargmax(np.nan_to_num(self.steps["step_s"])))
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
    figure = charts.timeline_chart(
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
