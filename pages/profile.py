"""Profile: set up one job in the sidebar, run it, watch where its time goes."""

import streamlit as st

from vitprof.errors import VitprofError
from vitprof.ui import live, resources
from vitprof.ui.runs import chosen_run, draw_empty, draw_queue
from vitprof.ui.settings import settings_form


def page() -> None:
    """The whole page; only the run's own part is drawn again while it goes on."""
    jobs = resources.manager()
    with st.sidebar:
        config, pressed = settings_form()
    if pressed and config is not None:
        try:
            st.query_params["run"] = str(jobs.submit(config))
        except VitprofError as error:
            st.error(str(error))
    run = chosen_run()
    draw_queue(run)
    if run is None:
        draw_empty()
        return
    title, button = st.columns([4, 1], vertical_alignment="center")
    title.subheader(run.name, anchor=False)
    if (
        jobs.owns(run.id)
        and run.live
        and button.button("Stop", key="stop-button", icon=":material/stop:", width="stretch")
    ):
        jobs.stop(run.id)
    st.fragment(live.draw_run, run_every=live.REFRESH_S if run.live else None)(run.id, run.live)
    if not run.live:
        live.draw_account(run)


page()
