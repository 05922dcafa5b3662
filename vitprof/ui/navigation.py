"""What is around every page: app.py, through which each runs even when it is opened by its own URL (Streamlit 1.67 runs
its script alone until `st.navigation` was called), and the note of the demonstration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import streamlit as st

from vitprof import demo

ENTERED, WANTED, SHOWN, LEFT = "entered through app.py", "page wanted", "page shown", "page as it was left"


@contextlib.contextmanager
def through_app(page: str) -> Iterator[None]:
    """Wraps the drawing of `page`: goes through app.py first if this session has not yet, and comes back. Without a
    query it gets the one with which this session left it: the browser's history also has URLs without it.
    """
    if ENTERED not in st.session_state:
        st.session_state[WANTED] = (page, _query())
        st.switch_page("app.py")
    key = f"query of {page}"
    kept, before = st.session_state.get(key, {}), st.session_state.get(SHOWN)
    st.session_state[SHOWN] = page
    left = st.session_state.get(f"query of {before}", {})
    if before != page and _query() != kept and all(left.get(name) == value for name, value in _query().items()):
        _restore(kept)
    yield
    keep_query()


def _restore(query: dict[str, list[str]]) -> None:
    with contextlib.suppress(
        st.errors.StreamlitAPIException
    ):  # the page was left so soon that its widgets are still bound
        st.query_params.from_dict(query)
        st.rerun()


def leave_for(page: str, query: dict[str, str]) -> None:
    """Opens another page with this query, which lets the browser's Back find this one as it was."""
    st.session_state[LEFT] = _query()
    st.switch_page(page, query_params=query)


def come_back(name: str) -> None:
    """Shows, once, what this page showed when it was left by `leave_for`, after Back or a link without `name`."""
    left = st.session_state.pop(LEFT, None)
    if left is not None and name not in st.query_params and left != _query():
        _restore(left)


def keep_query() -> None:
    st.session_state[f"query of {st.session_state.get(SHOWN)}"] = _query()


def enter() -> None:
    """Goes on to the page whose URL was opened. app.py calls this after `st.navigation`."""
    st.session_state[ENTERED] = True
    if wanted := st.session_state.pop(WANTED, None):
        page, query = wanted
        st.switch_page(page, query_params=query)


def _query() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def draw_demonstration_note() -> None:
    if not demo.is_demonstration():
        return
    about = "recorded runs. What you run here stays here; start vitprof without *demo* for your own."
    icon, query = ":material/emoji_events:", {"tournament": str(demo.TOURNAMENT)}
    with st.container(horizontal=True, vertical_alignment="center", key="demonstration"):
        st.caption(f":material/science: **Demonstration**: {about}", width="content")
        st.page_link("pages/tournament.py", label="Look at a tournament", icon=icon, query_params=query)
