"""The History page: search, filters, one page of the list at a time, and what can be done with the runs ticked in it.

Only the rows of the page are read, and of those nothing but what the list shows.
"""

from __future__ import annotations

import streamlit as st

from vitprof.program import program
from vitprof.store import RunQuery
from vitprof.ui.address import RUNS
from vitprof.ui.history.actions import draw_actions, tell_what_was_done
from vitprof.ui.history.importing import draw_import
from vitprof.ui.history.search import clear, draw_pager, draw_search
from vitprof.ui.history.table import draw_table
from vitprof.ui.resources import store
from vitprof.ui.texts import escaped, guarded


def draw_history() -> None:
    """The whole page."""
    tell_what_was_done()
    if not store().count_runs(RunQuery(helpers=True)):
        _draw_nothing_yet()
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-head"):
        asked = draw_search()
        draw_import()
    _draw_list(asked)
    st.query_params.pop(RUNS, None)  # the browser's Back leaves it in the URL


@guarded
def _draw_list(asked: RunQuery) -> None:
    """The runs found; the bar of actions and the table above the pager, which says what they are about."""
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
        "Open **Profile** and press **Run**, or bring runs along from another machine.",
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
