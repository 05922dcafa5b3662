"""The Profile page: set up one job in the sidebar, run it, watch where its time goes, and read the result in five tabs.

Only the open tab is drawn; the URL keeps which one that is.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from vitprof.config import RunConfig
from vitprof.config.own_script import is_own_script
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.downloads import draw_take_home
from vitprof.ui.notifications import watch
from vitprof.ui.profile import live
from vitprof.ui.profile.answer import draw_answer, draw_verdict
from vitprof.ui.profile.loading import draw_loading
from vitprof.ui.profile.runs import chosen_run, draw_queue, draw_title, start, take_settings
from vitprof.ui.profile.settings import settings_form
from vitprof.ui.profile.timeline import draw_timeline
from vitprof.ui.profile.welcome import draw_welcome
from vitprof.ui.profile.what_if import draw_what_if
from vitprof.ui.texts import guarded
from vitprof.ui.widgets import IN_URL


@guarded
def page() -> None:
    """Draws the whole page; while a run is live, only the run's own part is redrawn."""
    run = chosen_run()
    take_settings(run)
    with st.sidebar:
        config, pressed = settings_form()
    if pressed and config is not None:
        submit(config)
        run = chosen_run()
    draw_queue(run)
    if run is None:
        draw_welcome(config)
        return
    draw_title(run)
    watch(run)
    if run.live:
        st.fragment(live.draw_live, run_every=live.REFRESH_S)(run.id)
    else:
        draw_ended(run)


@guarded
def submit(config: RunConfig) -> None:
    """Starts or queues the run that the sidebar describes, and shows it."""
    start(config, from_sidebar=True)


def draw_ended(run: StoredRun) -> None:
    """Draws the answer in a sentence and five figures, and its evidence and what to do about it in tabs."""
    live.draw_state(run, 0.0)
    st.caption(live.set_up(run))
    series = resources.series(run.id)
    if run.summary is None:
        series.refresh(run.facts)
        n_steps = len(series.steps()["step"])
    else:  # the tabs that need its steps read them, once the answer is on the page
        series.refresh_telemetry()
        n_steps = run.summary.n_steps
    if not n_steps:
        st.info("This run ended before its first step, so there is nothing to draw.")
        return
    if run.config.loader_only:
        live.draw_headline(run, series)
    else:
        draw_verdict(run)
    live.draw_tiles(run, series)
    draw_tabs(run)


SHOW = "show"
"""Key of the tabs, and their name in the URL."""
LAST = "tab shown last"
TABS: dict[str, Callable[[StoredRun], None]] = {
    "Answer": draw_answer,
    "Timeline": draw_timeline,
    "Loading": draw_loading,
    "What if": draw_what_if,
    "Take home": draw_take_home,
}


NOT_OF_OWN_SCRIPTS = ("What if",)
"""Tabs that need a job that can be run again from here."""


def draw_tabs(run: StoredRun) -> None:
    """Draws the tabs, the open one with its content. A live run has none; after it, the tab that was last open is."""
    tabs = {name: draw for name, draw in TABS.items() if not (is_own_script(run.config) and name in NOT_OF_OWN_SCRIPTS)}
    last = st.session_state.get(LAST)
    if st.session_state.get(SHOW, st.query_params.get(SHOW)) not in (None, *tabs):
        last = st.session_state[SHOW] = next(iter(tabs))
    if last is not None and SHOW not in st.session_state and SHOW not in st.query_params:
        st.session_state[SHOW] = last
    for tab, draw in zip(st.tabs(list(tabs), key=SHOW, bind=IN_URL), tabs.values(), strict=True):
        if tab.open:
            with tab:
                draw(run)
    st.session_state[LAST] = st.session_state[SHOW]
