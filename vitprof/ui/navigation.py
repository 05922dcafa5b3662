"""What is around every page: app.py, through which each runs even when it is opened by its own URL (Streamlit 1.67 runs
its script alone until `st.navigation` was called), its style, and the note of the demonstration.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import RerunData, ScriptRunner, get_script_run_ctx

from vitprof import demo

ENTERED = "entered through app.py"
WANTED = "page wanted"
SHOWN = "page shown"
LEFT = "page as it was left"
QUERIES = "queries of pages"
RETRIED = "restoring again"
STYLE, SKIP_LINK, MARK = map(Path(__file__).with_name, ("style.css", "skip_link.js", "mark.svg"))
PAGE_ICON = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAgMAAAAOFJJnAAAADFBMVEUAAAAAnnPmnwAAAABBKBO9AAAABHRSTlMA//8"
    "Ani+vBQAAACNJREFUeNpjYCAHMLIG/F/DGsDwnwkmQgcGVsC1agVVzMEFAJCGBNSDK2FdAAAAAElFTkSuQmCC"
)
"""The tab's icon: busy time with a gap. Streamlit would fetch a name from the network, and serves images from a file
that it removes when the session of another tab ends."""


@contextlib.contextmanager
def through_app(page: str) -> Iterator[None]:
    """Wraps the drawing of `page`: goes through app.py first if this session has not yet, and comes back. Without a
    query it gets the one with which this session left it: the browser's history also has URLs without it. A request
    that Streamlit made of two, with this page and the query of another one that Back asked for, goes to that one.
    """
    if ENTERED not in st.session_state:
        st.session_state[WANTED] = (page, _query())
        st.switch_page("app.py")
    queries: dict[str, dict[str, list[str]]] = st.session_state.setdefault(QUERIES, {})
    shown = st.session_state.get(SHOWN)
    query = _query()
    kept = queries.get(page, {})
    if query and query != kept and shown == page:
        for other, its in queries.items():
            if its == query:
                st.switch_page(other, query_params=its)
    elif query != kept and shown != page and query.items() <= queries.get(str(shown), {}).items():
        _restore(kept)
    st.session_state[SHOWN] = page
    st.session_state.pop(RETRIED, None)
    yield
    queries[page] = _query()


def _restore(query: dict[str, list[str]]) -> None:
    try:
        st.query_params.from_dict(query)
    except (
        st.errors.StreamlitAPIException
    ):  # the page before was left so soon that its widgets are bound until this
        if RETRIED in st.session_state:  # run ends
            return
        st.session_state[RETRIED] = True
    st.rerun()


def leave_for(page: str, query: dict[str, str]) -> None:
    """Opens another page with this query, which lets the browser's Back find this one as it was."""
    st.session_state[LEFT] = _query()
    st.switch_page(page, query_params=query)


def come_back(name: str) -> None:
    """Shows, once, what this page showed when it was left by `leave_for`, after Back or a link without `name`."""
    left = st.session_state.get(LEFT)
    if left is not None and name not in st.query_params and left != _query():
        _restore(left)
    st.session_state.pop(LEFT, None)


def enter() -> None:
    """Goes on to the page whose URL was opened. app.py calls this after `st.navigation`."""
    st.session_state[ENTERED] = True
    if wanted := st.session_state.pop(WANTED, None):
        page, query = wanted
        st.switch_page(page, query_params=query)


def skip_left_fragments() -> None:
    """Makes Streamlit skip a fragment of a page that was left before the fragment's turn came. Streamlit 1.67 runs it,
    with the page that was shown when the browser asked, and the browser empties the page that is shown now.
    """
    run: Any = getattr(
        ScriptRunner, "_run_script", None
    )  # Streamlit's own: another version may do without it

    def run_if_shown(self: ScriptRunner, rerun_data: RerunData) -> None:
        context = get_script_run_ctx()
        shown = context.page_script_hash if context else ""
        if not rerun_data.fragment_id_queue or shown in ("", rerun_data.page_script_hash):
            run(self, rerun_data)

    if run is not None:
        ScriptRunner._run_script = run_if_shown  # type: ignore[method-assign]


skip_left_fragments()


def _query() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def apply_style() -> None:
    st.html(STYLE)
    st.logo(MARK, size="large")


def add_skip_link() -> None:
    """Adds the button "Skip to Run", the first that the Tab key reaches."""
    with st.container(key="vitprof-skip-script"):
        st.html(f"<script>{SKIP_LINK.read_text()}</script>", unsafe_allow_javascript=True)


def draw_demonstration_note() -> None:
    if not demo.is_demonstration():
        return
    about = (
        "recorded runs. What you run here stays here; start vitprof without *demo* for your own."
    )
    icon = ":material/emoji_events:"
    query = {"tournament": str(demo.TOURNAMENT)}
    with st.container(horizontal=True, vertical_alignment="center", key="demonstration"):
        st.caption(f":material/science: **Demonstration**: {about}", width="content")
        st.page_link(
            "pages/tournament.py", label="Look at a tournament", icon=icon, query_params=query
        )
