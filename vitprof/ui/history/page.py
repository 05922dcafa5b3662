"""The History page: search, filters, one page of the list at a time, and what can be done with the runs ticked in it.

Only the rows of the page are read, and of those nothing but what the list shows.
"""

from __future__ import annotations

import math

import streamlit as st

from vitprof.store import RunQuery, RunRow
from vitprof.ui.history import state
from vitprof.ui.history.actions import draw_actions, tell_what_was_done
from vitprof.ui.history.importing import draw_import
from vitprof.ui.history.table import draw_table
from vitprof.ui.resources import store
from vitprof.ui.texts import escaped, guarded


def draw_history() -> None:
    """The whole page."""
    tell_what_was_done()
    if not store().count_runs(RunQuery(helpers=True)):
        _draw_nothing_yet()
        return
    state.begin()
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-head"):
        _draw_search()
        draw_import()
    asked = state.query()
    found = store().count_runs(asked)
    size = st.session_state[state.key("size")]
    pages = max(1, math.ceil(found / size))
    st.session_state[state.key("page")] = page = min(st.session_state[state.key("page")], pages)
    rows = store().list_runs(asked, limit=size, offset=(page - 1) * size)
    _draw_list(rows, found, page, pages)
    state.end()


@guarded
def _draw_list(rows: list[RunRow], found: int, page: int, pages: int) -> None:
    if not rows:
        _draw_no_match()
        return
    bar = st.container(key="history-actions")
    ticked = draw_table(rows)
    with bar:
        draw_actions(ticked)
    _draw_pager(len(rows), found, page, pages)


def _draw_nothing_yet() -> None:
    st.info(
        "No runs yet. Every run that you make, here or with `python -m vitprof run`, is listed on this page. "
        "Open **Profile** and press **Run**, or bring runs along from another machine.",
        icon=":material/history:",
    )
    with st.container(horizontal=True):
        if st.button("Open Profile", icon=":material/monitoring:", type="primary", help="To make the first run."):
            st.switch_page("pages/profile.py")
        draw_import()


def _draw_no_match() -> None:
    searched = escaped(st.session_state[state.key("q")].strip())
    st.info(
        "No run matches " + (f"the search for **{searched}**" if searched else "these filters") + ". Runs that were "
        "made for another one, such as trials of a tournament, are only found with *Also helper runs*.",
        icon=":material/search_off:",
    )
    st.button(
        "Clear search and filters",
        icon=":material/filter_alt_off:",
        on_click=state.clear,
        key="history-clear",
        help="Shows every run again.",
    )


def _draw_search() -> None:
    st.text_input(
        "Search",
        key=state.key("q"),
        placeholder="name, note, tag, strategy, #12",
        help="Words; a run must have each of them in its name, note, tags, strategy, data set or device. "
        "A number finds the run with that number.",
        icon=":material/search:",
        on_change=state.first_page,
        max_chars=state.MOST_TEXT,
    )
    st.selectbox(
        "Sort by",
        list(state.SORTS),
        format_func=lambda name: state.SORTS[name][0],
        key=state.key("sort"),
        help="The order of all runs, not only of this page. Runs without the figure come last.",
        on_change=state.first_page,
        width=170,
    )
    n = state.narrowed() + st.session_state[state.key("helpers")]
    with st.popover(
        f"Filters ({n})" if n else "Filters",
        icon=":material/filter_alt:",
        help="By verdict, strategy, data set, device, status and tag.",
        key="history-filters",
    ):
        for name, (label, column, help_text) in state.FILTERS.items():
            chosen = st.session_state[state.key(name)]
            st.multiselect(
                label,
                sorted({*store().choices(column), *chosen}),
                key=state.key(name),
                help=help_text,
                on_change=state.first_page,
                placeholder="any",
            )
        st.toggle(
            "Also helper runs",
            key=state.key("helpers"),
            help="Runs made for another one: anchors of its headroom, loader-only runs, trials of tournaments.",
            on_change=state.first_page,
        )
        st.button(
            "Clear filters",
            on_click=state.clear,
            key="history-clear-filters",
            help="Shows every run again.",
            icon=":material/filter_alt_off:",
        )


def _draw_pager(shown: int, found: int, page: int, pages: int) -> None:
    size = st.session_state[state.key("size")]
    first = (page - 1) * size + 1
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-pager"):
        st.button(
            "Previous",
            disabled=page == 1,
            on_click=_turn,
            args=(page - 1,),
            key="history-previous",
            icon=":material/chevron_left:",
            help="The page before.",
        )
        st.number_input("Page", min_value=1, max_value=pages, key=state.key("page"), help=f"1 to {pages:,}.", width=130)
        st.button(
            "Next",
            disabled=page == pages,
            on_click=_turn,
            args=(page + 1,),
            key="history-next",
            icon=":material/chevron_right:",
            help="The next page.",
        )
        st.selectbox(
            "Runs a page",
            state.SIZES,
            key=state.key("size"),
            help="How many runs are listed at a time.",
            on_change=state.first_page,
            width=120,
        )
        st.caption(f"{first:,} to {first + shown - 1:,} of {found:,} runs", width="content")


def _turn(page: int) -> None:
    st.session_state[state.key("page")] = page
