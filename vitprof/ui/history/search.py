"""What the History page lists: search, order, filters and page. Each widget keeps its value in the URL by itself.

A widget's key is its name in the URL. Some names are plural so that they differ from those of the sidebar's settings,
which are kept in URLs too.
"""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from vitprof.config.bounds import MAX_SEARCH
from vitprof.store import RunQuery
from vitprof.ui.resources import store
from vitprof.ui.url_state import IN_URL

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


def draw_pager(found: int) -> tuple[int, int]:
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
        before = size * (numbers.pagination(math.ceil(found / size), key=PAGE, bind=IN_URL) - 1)
        st.caption(f"{before + 1:,} to {min(before + size, found):,} of {found:,} runs", width="content")
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
