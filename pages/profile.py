"""Profile: set up one job in the sidebar, run it, watch where its time goes, and read the result."""

import streamlit as st

from vitprof.config import RunConfig
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.navigation import through_app
from vitprof.ui.notifications import watch
from vitprof.ui.profile import live
from vitprof.ui.profile.answer import draw_verdict
from vitprof.ui.profile.runs import chosen_run, draw_queue, draw_title, start, take_settings
from vitprof.ui.profile.settings import settings_form
from vitprof.ui.profile.tabs import draw_tabs
from vitprof.ui.profile.welcome import draw_welcome
from vitprof.ui.texts import guarded


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


with through_app("pages/profile.py"):
    page()
