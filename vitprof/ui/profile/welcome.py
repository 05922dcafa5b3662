"""What a newcomer sees: what this is, a run that shows it, and the own machine."""

from __future__ import annotations

import streamlit as st

from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.ui.machine import draw_machine, machine_in_words
from vitprof.ui.profile.runs import start
from vitprof.ui.texts import escaped

STARVED = RunConfig(
    strategy="per-sample",
    device="simulated:h100",
    batch_size=128,
    seconds=8,
    evaluate=False,
)
"""Loading a batch sample by sample takes a core of today some 10 ms, and an H100 4 ms for its step."""
FAILED = "why the run could not be started"


def draw_welcome(config: RunConfig | None) -> None:
    """Draws the page where no run is shown; `config` is what Run would start, None where it cannot."""
    st.title("Is your GPU starved by data loading?", anchor=False)
    st.markdown(
        "vitprof trains a small Vision Transformer for a few seconds and times every batch on its way to the device. "
        "You see where each step's time goes, with every gap in which the GPU had nothing to do, and read in one "
        "sentence what would close the gaps."
    )
    left, right = st.columns(2, gap="medium")
    with left:
        st.button(
            "See a starved GPU",
            type="primary",
            key="see-starved",
            icon=":material/play_circle:",
            on_click=_start,
            args=(STARVED, False),
            help="Runs for 8 seconds, with these settings in the sidebar afterwards.",
        )
        st.caption("8 seconds on a simulated H100 that gets its images one by one, as most tutorials load them.")
    with right, st.container(gap="xxsmall"):
        st.markdown(machine_in_words())
        st.caption("Set up a run of your own in the sidebar and press **Run**.")
        with st.container(key="page-run"):  # where the sidebar is folded away
            st.button(
                "Run with these settings",
                key="page-run-button",
                icon=":material/play_arrow:",
                disabled=config is None,
                on_click=_start,
                args=(config, True),
                help="The settings are behind » at the top left.",
            )
    if why := st.session_state.pop(FAILED, ""):
        st.error(escaped(why))
    draw_machine()
    st.caption("Read on")
    with st.container(horizontal=True):
        st.page_link("pages/tournament.py", label="Which setting is the fastest here?", icon=":material/emoji_events:")
        st.page_link("pages/strategies.py", label="How can data be loaded?", icon=":material/account_tree:")
        st.page_link("pages/history.py", label="What ran before", icon=":material/history:")


def _start(config: RunConfig | None, from_sidebar: bool) -> None:
    """Starts a run and shows it."""
    if config is None:
        return
    try:
        start(config, from_sidebar=from_sidebar)
    except VitprofError as error:
        st.session_state[FAILED] = str(error)
