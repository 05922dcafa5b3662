"""The History page: search, filters, one page of the list at a time, and actions for the runs that are ticked in it.

Only the rows of that page are read, and only the columns that the list shows.
"""

from __future__ import annotations

import streamlit as st

from vitprof.program import program
from vitprof.store import RunQuery
from vitprof.ui.history.actions import draw_actions, tell_what_was_done
from vitprof.ui.history.importing import draw_import
from vitprof.ui.history.search import clear, draw_pager, draw_search
from vitprof.ui.history.table import draw_table
from vitprof.ui.resources import store
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.url_state import RUNS


def draw_history() -> None:
    """Draws everything but the page's title."""
    tell_what_was_done()
    if not store().count_runs(RunQuery(helpers=True)):
        _draw_nothing_yet()
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-head"):
        asked = draw_search()
        draw_import()
    _draw_list(asked)
    st.query_params.pop(RUNS, None)  # Compare's; the browser's Back leaves it in the URL


@guarded
def _draw_list(asked: RunQuery) -> None:
    """Draws the runs found. The actions and the table are above the pager, but drawn after it: they depend on it."""
    found = store().count_runs(asked)
    if not found:
        _draw_no_match(asked.text)
        return
    with st.container(key="history-list"):
        bar, listed = st.container(key="history-actions"), st.container()
    before, size = draw_pager(found)
    with listed:
        ticked = draw_table(store().list_runs(asked, limit=size, offset=before))
    with bar:
        draw_actions(ticked)


def _draw_nothing_yet() -> None:
    st.info(
        f"No runs yet. Every run that you make, here or with `{program()} run`, is listed on this page. "
        "Open **Profile** and press **Run**, or import runs from another machine.",
        icon=":material/history:",
    )
    with st.container(horizontal=True):
        if st.button("Open Profile", icon=":material/monitoring:", type="primary", help="To make the first run."):
            st.switch_page("pages/profile.py")
        draw_import()


def _draw_no_match(text: str) -> None:
    searched = escaped(text.strip())
    st.info(
        "No run matches " + (f"the search for **{searched}**" if searched else "these filters") + ". Trials of "
        "tournaments and other runs made for another one are only found with *Also helper runs*.",
        icon=":material/search_off:",
    )
    st.button(
        "Clear search and filters",
        icon=":material/filter_alt_off:",
        on_click=clear,
        key="history-clear",
        help="Shows every run again.",
    )
