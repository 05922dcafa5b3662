"""The five tabs of a run that has ended. Only the open one is drawn; the URL keeps which one that is."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from vitprof.config.own_script import is_own_script
from vitprof.store import StoredRun
from vitprof.ui.downloads import draw_take_home
from vitprof.ui.profile.answer import draw_answer
from vitprof.ui.profile.loading import draw_loading
from vitprof.ui.profile.timeline import draw_timeline
from vitprof.ui.profile.what_if import draw_what_if
from vitprof.ui.widgets import IN_URL

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
