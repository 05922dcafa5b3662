"""What the History page is set to, in its address: a link or a reload shows the same list.

The address wins where it says something that this page did not write (a link, a reload, the browser's Back), else what
the session remembers. Names are plural where those of the sidebar's settings, which stand in addresses too, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from vitprof.store import RunQuery

KEPT = "history-kept"
SIZES = (25, 50, 100)
SORTS: dict[str, tuple[str, str, bool]] = {
    "newest": ("Newest first", "id", True),
    "oldest": ("Oldest first", "id", False),
    "name": ("Name, A to Z", "name", False),
    "strategy": ("Strategy, A to Z", "strategy", False),
    "fastest": ("Fastest first", "samples_per_s", True),
    "slowest": ("Slowest first", "samples_per_s", False),
    "idlest": ("Most idle first", "idle_frac", True),
    "busiest": ("Least idle first", "idle_frac", False),
}
"""Word in the address -> words on the page, what is sorted by, whether the largest comes first."""
FILTERS: dict[str, tuple[str, str, str]] = {
    "verdicts": ("Verdict", "verdict_kind", "Whether loading held the device up."),
    "strategies": ("Strategy", "strategy", "How the samples were stored, loaded and brought to the device."),
    "datasets": ("Data set", "dataset", "What the run was trained on."),
    "devices": ("Device", "device", "As it was asked for: auto, cpu, cuda:N or an imitated one."),
    "statuses": ("Status", "status", "How the run ended, or that it still goes on."),
    "tags": ("Tag", "tag", "Runs with any of these tags."),
}
"""Name in the address -> label, what `RunStore.choices` calls it, help."""
SINGLE = ("q", "sort", "size", "page", "helpers")
OF_COMPARE = "runs"
"""A name of the Compare page; the browser's Back leaves it in the address."""
MOST_VALUES, MOST_TEXT = 50, 200
"""Of what an address says: more is cut off."""


def key(name: str) -> str:
    """The key of the widget for one of the address's names."""
    return f"history-{name}"


def begin() -> None:
    """Set the page's widgets before they are drawn: from the address, or as they were when the page was left."""
    here = {n: st.query_params.get_all(n) for n in (*SINGLE, *FILTERS) if n in st.query_params}
    kept = st.session_state.get(KEPT)
    if kept is None or (here and here != kept):
        _load(here)
    else:  # Streamlit forgets what a widget was set to in a run that ended before it was drawn
        _load(kept, missing_only=True)


def _load(values: dict[str, list[str]], *, missing_only: bool = False) -> None:
    for name, value in _parsed(values).items():
        if not missing_only or key(name) not in st.session_state:
            st.session_state[key(name)] = value


def _parsed(values: dict[str, list[str]]) -> dict[str, Any]:
    """What the widgets can be set to; the usual value for what is nonsense."""
    one = {name: (values.get(name) or [""])[-1][:MOST_TEXT] for name in SINGLE}
    page = one["page"]
    found: dict[str, Any] = {
        "q": one["q"],
        "sort": one["sort"] if one["sort"] in SORTS else next(iter(SORTS)),
        "size": int(one["size"]) if one["size"] in map(str, SIZES) else SIZES[0],
        "page": int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 8 and int(page) else 1,
        "helpers": one["helpers"] == "1",
    }
    for name in FILTERS:
        texts = [text[:MOST_TEXT] for text in values.get(name, []) if text][:MOST_VALUES]
        found[name] = list(dict.fromkeys(texts))
    return found


def end() -> None:
    """Put what the widgets are set to into the address; what is as usual stands in no address."""
    state = st.session_state
    usual = {"q": "", "sort": next(iter(SORTS)), "size": SIZES[0], "page": 1, "helpers": False}
    said: dict[str, list[str]] = {}
    for name, value in usual.items():
        if state[key(name)] != value:
            said[name] = ["1" if name == "helpers" else str(state[key(name)])]
    said |= {name: list(state[key(name)]) for name in FILTERS if state[key(name)]}
    state[KEPT] = said
    for name in (*SINGLE, *FILTERS):
        if name in said:
            if st.query_params.get_all(name) != said[name]:
                st.query_params[name] = said[name]
        elif name in st.query_params:
            del st.query_params[name]
    if OF_COMPARE in st.query_params:
        del st.query_params[OF_COMPARE]


def first_page() -> None:
    """Another search begins on its first page."""
    st.session_state[key("page")] = 1


def clear() -> None:
    """No search, no filter."""
    st.session_state[key("q")] = ""
    for name in FILTERS:
        st.session_state[key(name)] = []
    first_page()


def narrowed() -> int:
    """How many filters are set, the search left out."""
    return sum(bool(st.session_state[key(name)]) for name in FILTERS)


def query() -> RunQuery:
    """What the widgets ask for."""
    state = st.session_state

    def chosen(name: str) -> tuple[str, ...]:
        values: Sequence[str] = state[key(name)]
        return tuple(values)

    _, by, descending = SORTS[state[key("sort")]]
    return RunQuery(
        text=state[key("q")],
        statuses=chosen("statuses"),
        strategies=chosen("strategies"),
        datasets=chosen("datasets"),
        devices=chosen("devices"),
        verdicts=chosen("verdicts"),
        tags=chosen("tags"),
        helpers=state[key("helpers")],
        sort=by,
        descending=descending,
    )
