"""The History page: search, order and filters, one page of the list at a time, actions for the runs that are ticked in
it, and the import of runs from another machine.

Only the rows of that page are read, and only the columns that the list shows. A widget's key is its name in the URL,
where it keeps its value by itself. Some names are plural so that they differ from those of the sidebar's settings.
"""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from vitprof import formats
from vitprof.config.bounds import MAX_SEARCH
from vitprof.errors import VitprofError, one_line
from vitprof.export.bundle import MAX_FILE_BYTES, SUFFIX, import_bundle
from vitprof.program import program
from vitprof.store import RunQuery
from vitprof.ui.history.actions import DONE, draw_actions, tell_what_was_done
from vitprof.ui.history.table import draw_table
from vitprof.ui.resources import store
from vitprof.ui.texts import escaped, guarded, sentence
from vitprof.ui.widgets import IN_URL, RUNS


def draw_history() -> None:
    """Draws everything but the page's title."""
    tell_what_was_done()
    if not store().count_runs(RunQuery(helpers=True)):
        _draw_nothing_yet()
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-head"):
        query = draw_search()
        draw_import()
    _draw_list(query)
    st.query_params.pop(RUNS, None)  # Compare's; the browser's Back leaves it in the URL


@guarded
def _draw_list(query: RunQuery) -> None:
    """Draws the runs found. The actions and the table are above the pager, but drawn after it: they depend on it."""
    total = store().count_runs(query)
    if not total:
        _draw_no_match(query.text)
        return
    with st.container(key="history-list"):
        bar, listed = st.container(key="history-actions"), st.container()
    before, size = draw_pager(total)
    with listed:
        ticked = draw_table(store().list_runs(query, limit=size, offset=before))
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


TURN, OUTCOME = "history-import-turn", "history-import-outcome"


def draw_import() -> None:
    """Draws an uploader that imports a file as soon as it is chosen, and the outcome in words."""
    turn = st.session_state.setdefault(TURN, 0)
    with st.popover(
        "Import",
        icon=":material/upload:",
        key="history-import",
        help=f"Runs that were exported on another machine, as a *{SUFFIX} file.",
    ):
        given = st.file_uploader(
            "Runs from another machine",
            type=SUFFIX.removeprefix("."),
            key=f"history-upload-{turn}",
            max_upload_size=MAX_FILE_BYTES // 2**20,
            help=f"A {SUFFIX} file of at most {formats.size(MAX_FILE_BYTES)}, written by Export on another machine's "
            f"History page or by `{program()} bundle`. It is checked before anything is stored.",
        )
        if given is not None:
            _take_in(given.name, given)
        if outcome := st.session_state.get(OUTCOME):
            worked, words = outcome
            (st.success if worked else st.error)(escaped(words))


def _take_in(name: str, file: st.runtime.uploaded_file_manager.UploadedFile) -> None:
    """Imports the file, then redraws the page with an empty uploader, so that a rerun does not import it again."""
    try:
        with st.spinner("Checking and storing the runs..."):
            words = sentence(import_bundle(store(), file).sentence)
        st.session_state[OUTCOME] = (True, f"{name}: {words}")
        st.session_state[DONE] = words
    except VitprofError as error:
        st.session_state[OUTCOME] = (False, f"{name}: {one_line(error)}")
    st.session_state[TURN] += 1
    st.rerun()


SIZES = (25, 50, 100)
SORTS: dict[str, tuple[str, bool]] = {
    "Newest first": ("id", True),
    "Oldest first": ("id", False),
    "Name, A to Z": ("name", False),
    "Strategy, A to Z": ("strategy", False),
    "Fastest first": ("samples_per_s", True),
    "Slowest first": ("samples_per_s", False),
    "Most idle first": ("idle_frac", True),
    "Least idle first": ("idle_frac", False),
}
"""Label -> column to sort by, whether the largest comes first."""
FILTERS: dict[str, tuple[str, str, str]] = {
    "verdicts": ("Verdict", "verdict_kind", "Whether loading held the device up."),
    "strategies": ("Strategy", "strategy", "How the samples were stored, loaded and brought to the device."),
    "datasets": ("Data set", "dataset", "What the run was trained on."),
    "devices": ("Device", "device", "As requested: auto, cpu, cuda:N or a simulated one."),
    "statuses": ("Status", "status", "How the run ended, or that it is still running."),
    "tags": ("Tag", "tag", "Runs with any of these tags."),
}
"""Field of `RunQuery` -> label, what `RunStore.choices` calls it, help."""
SEARCH, PAGE = "q", "page"


def draw_search() -> RunQuery:
    """Draws search, order and filters; returns the query that they make."""
    text = st.text_input(
        "Search",
        key=SEARCH,
        placeholder="name, note, tag, strategy, #12",
        help="Words; a run must have each of them in its name, note, tags, strategy, data set or device. "
        "A number finds the run with that number.",
        icon=":material/search:",
        on_change=show_first_page,
        max_chars=MAX_SEARCH,
        bind=IN_URL,
    )
    sort = st.selectbox(
        "Sort by",
        list(SORTS),
        key="sort",
        help="The order of all runs, not only of this page. Runs without the figure come last.",
        on_change=show_first_page,
        width=170,
        bind=IN_URL,
    )
    by, descending = SORTS[str(sort)]
    with st.popover(
        "Filters",
        icon=":material/filter_alt:",
        help="By verdict, strategy, data set, device, status and tag.",
        key="history-filters",
    ):
        chosen: dict[str, Any] = {name: _draw_filter(name) for name in FILTERS}
        helpers = st.toggle(
            "Also helper runs",
            key="helpers",
            help="Runs made for another one: anchors of its headroom, loader-only runs, trials of tournaments.",
            on_change=show_first_page,
            bind=IN_URL,
        )
        st.button(
            "Clear filters",
            on_click=clear,
            key="history-clear-filters",
            help="Shows every run again.",
            icon=":material/filter_alt_off:",
        )
    if n := sum(map(bool, chosen.values())) + helpers:
        st.badge(f"{n} set", help="Filters that narrow or widen the list.")
    return RunQuery(text=text, **chosen, helpers=helpers, sort=by, descending=descending)


def _draw_filter(name: str) -> tuple[str, ...]:
    label, column, help_text = FILTERS[name]
    return tuple(
        st.multiselect(
            label,
            sorted({*store().choices(column), *filter(None, st.query_params.get_all(name))}),  # also without runs
            key=name,
            help=help_text,
            on_change=show_first_page,
            placeholder="any",
            bind=IN_URL,
        )
    )


def draw_pager(total: int) -> tuple[int, int]:
    """Draws the choice of a page of `found` runs; returns how many runs come before it, and its size."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-pager"):
        numbers = st.container(width="content")  # shown before the size, drawn after it: it depends on it
        chosen: int | None = st.selectbox(
            "Runs a page",
            SIZES,
            key="size",
            help="How many runs are listed at a time.",
            on_change=show_first_page,
            width=120,
            bind=IN_URL,
        )
        size = chosen or SIZES[0]
        before = size * (numbers.pagination(math.ceil(total / size), key=PAGE, bind=IN_URL) - 1)
        st.caption(f"{before + 1:,} to {min(before + size, total):,} of {total:,} runs", width="content")
    return before, size


def show_first_page() -> None:
    """Goes to the first page, as another search needs."""
    st.session_state[PAGE] = 1


def clear() -> None:
    """Clears search and filters."""
    st.session_state[SEARCH] = ""
    for name in FILTERS:
        st.session_state[name] = []
    show_first_page()
