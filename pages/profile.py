"""Profile: set up one job in the sidebar, run it, watch where its time goes, and read what came of it."""

import streamlit as st

from vitprof.config import RunConfig
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.address import show_run
from vitprof.ui.downloads import draw_downloads
from vitprof.ui.navigation import through_app
from vitprof.ui.notifications import watch
from vitprof.ui.profile import live
from vitprof.ui.profile.account import draw_account, draw_recording_cost
from vitprof.ui.profile.device_time import draw_device_time
from vitprof.ui.profile.headroom import draw_headroom
from vitprof.ui.profile.loading import draw_loading, draw_signatures
from vitprof.ui.profile.predictions import draw_predictions
from vitprof.ui.profile.runs import chosen_run, draw_empty, draw_queue, draw_title
from vitprof.ui.profile.settings import settings_form
from vitprof.ui.profile.verdict import draw_verdict
from vitprof.ui.texts import guarded


@guarded
def page() -> None:
    """The whole page; only the run's own part is drawn again while it goes on."""
    with st.sidebar:
        config, pressed = settings_form()
    if pressed and config is not None:
        submit(config)
    run = chosen_run()
    draw_queue(run)
    if run is None:
        draw_empty()
        return
    draw_title(run)
    watch(run)
    if run.live:
        st.fragment(live.draw_live, run_every=live.REFRESH_S)(run.id)
    else:
        draw_ended(run)


@guarded
def submit(config: RunConfig) -> None:
    show_run(resources.manager().submit(config))


def draw_ended(run: StoredRun) -> None:
    """From the answer to the details: the verdict, what it rests on, what to measure next, every step."""
    with st.container(gap="xxsmall"):
        live.draw_state(run, 0.0)
        live.draw_set_up(run)
    series = resources.series(run.id)
    series.refresh()
    if not len(series.steps()["step"]):
        st.info("This run ended before its first step, so there is nothing to draw.")
        return
    if run.config.loader_only:
        live.draw_headline(run, series.totals)
    draw_verdict(run)
    live.draw_tiles(run, series)
    draw_device_time(run)
    draw_loading(run)
    draw_signatures(run)
    draw_headroom(run)
    draw_predictions(run)
    draw_downloads(run)
    draw_recording_cost(run)
    st.fragment(live.draw_every_step)(run)
    draw_account(run)


with through_app("pages/profile.py"):
    page()
