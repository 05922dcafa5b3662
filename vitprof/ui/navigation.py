"""What is around every page: app.py, its style, and the note of the demonstration.

Each page runs through app.py even when it is opened by its own URL. Streamlit 1.67 finds the folder
pages/ by itself until app.py has called `st.navigation` for the first time since the server
started. Until then a page's own URL runs its script alone: without navigation, layout and assets. A
page comes back as it was left.
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
FIRST = "profile"
"""The page that the dashboard opens with, at its address itself."""
TITLES = {
    FIRST: "Profile",
    "tournament": "Try fixes",
    "history": "History",
    "compare": "Compare",
    "strategies": "Strategies",
    "machines": "Machines",
    "selftest": "Self-test",
}
"""Name of each page's file, and of all but the first in its address -> its title."""
ICONS = {
    FIRST: "monitoring",
    "tournament": "emoji_events",
    "history": "history",
    "compare": "compare_arrows",
    "strategies": "account_tree",
    "machines": "dns",
    "selftest": "fact_check",
}
FIRST_GROUP = 3
"""Pages of the first group. Above settings in the sidebar the others are behind "View more"."""
STYLE = Path(__file__).with_name("style.css")
SCRIPTS = (
    Path(__file__).with_name("history_entries.js"),
    Path(__file__).with_name("skip_link.js"),
)
MARK = Path(__file__).with_name("mark.svg")
PAGE_ICON = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAgMAAAAOFJJnAAAADFBMVEUAAAAAnnPmnwAAAABBKBO9AAAABHRSTlMA//8"
    "Ani+vBQAAACNJREFUeNpjYCAHMLIG/F/DGsDwnwkmQgcGVsC1agVVzMEFAJCGBNSDK2FdAAAAAElFTkSuQmCC"
)
"""The tab's icon: busy time with a gap. Streamlit would fetch a name from the network, and serves
images from a file that it removes when the session of another tab ends."""


def pages() -> dict[str, list[Any]]:
    """Returns the pages in the navigation's two groups: what a first day needs, and the rest."""
    made = []
    for name, title in TITLES.items():
        icon = f":material/{ICONS[name]}:"
        page = st.Page(f"pages/{name}.py", title=title, icon=icon, default=name == FIRST)
        made.append(page)
    return {"": made[:FIRST_GROUP], "More": made[FIRST_GROUP:]}


def addresses() -> dict[str, str]:
    """Returns the address of each page below the base path, "" for the first one -> its title."""
    return {"" if name == FIRST else name: title for name, title in TITLES.items()}


@contextlib.contextmanager
def through_app(page: str) -> Iterator[None]:
    """Wraps the drawing of `page`: goes through app.py first if this session has not yet, and comes
    back.

    A page that is entered without a query gets back the query with which this session left it.
    After the browser's Back, Streamlit follows the URL, and leaving a page with bound widgets adds
    an entry without a query, or with a part of that of the page that was left, to the browser's
    history. A request that Streamlit made of two, with this page and the query of another one that
    Back asked for, goes to that one.
    """
    if ENTERED not in st.session_state:
        st.session_state[WANTED] = (page, _query())
        st.switch_page("app.py")
    queries: dict[str, dict[str, list[str]]] = st.session_state.setdefault(QUERIES, {})
    shown = st.session_state.get(SHOWN)
    query = _query()
    kept = queries.get(page, {})
    of_shown = queries.get(str(shown), {})
    if shown == page and query and query != kept:
        for other, query_of_other in queries.items():
            if query == query_of_other:
                st.switch_page(other, query_params=query_of_other)
    elif shown != page and query != kept and query.items() <= of_shown.items():
        _restore(kept)
    st.session_state[SHOWN] = page
    st.session_state.pop(RETRIED, None)
    yield
    queries[page] = _query()


def _restore(query: dict[str, list[str]]) -> None:
    """Draws the page anew with this query; tried once more where Streamlit does not take it yet."""
    try:
        st.query_params.from_dict(query)
    except st.errors.StreamlitAPIException:
        # the page before was left so soon that its widgets are bound until this run ends
        if RETRIED in st.session_state:
            return
        st.session_state[RETRIED] = True
    st.rerun()


def leave_for(page: str, query: dict[str, str]) -> None:
    """Opens another page with this query, and lets the browser's Back find this one as it was.

    `st.switch_page` puts an entry with the new query and the old page into the browser's history,
    on which Back lands.
    """
    st.session_state[LEFT] = _query()
    st.switch_page(page, query_params=query)


def come_back(name: str) -> None:
    """Shows what this page showed when it was left by `leave_for`.

    For when Back or a link leads here again without the parameter `name`. It does so once: going
    further back shows what the URL says.
    """
    shown_before = st.session_state.get(LEFT)
    if shown_before is not None and name not in st.query_params and shown_before != _query():
        _restore(shown_before)
    st.session_state.pop(LEFT, None)


def enter() -> None:
    """Goes on to the page whose URL was opened. app.py calls this after `st.navigation`."""
    st.session_state[ENTERED] = True
    if wanted := st.session_state.pop(WANTED, None):
        page, query = wanted
        st.switch_page(page, query_params=query)


def skip_left_fragments() -> None:
    """Makes Streamlit skip a fragment of a page that was left before the fragment's turn came.

    Streamlit 1.67 runs it, with the page that was shown when the browser asked, and the browser
    empties the page that is shown now.
    """
    # Streamlit's own: another version may do without it
    run: Any = getattr(ScriptRunner, "_run_script", None)

    def run_if_shown(self: ScriptRunner, rerun_data: RerunData) -> None:
        context = get_script_run_ctx()
        shown = context.page_script_hash if context else ""
        is_shown = shown in ("", rerun_data.page_script_hash)
        if is_shown or not rerun_data.fragment_id_queue:
            run(self, rerun_data)

    if run is not None:
        ScriptRunner._run_script = run_if_shown  # type: ignore[method-assign]


skip_left_fragments()


def _query() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def apply_style() -> None:
    st.html(STYLE)
    st.logo(MARK, size="large")


def add_scripts() -> None:
    """Adds what runs in the browser: one entry of its history for each step, and the button "Skip to
    Run", the first that the Tab key reaches."""
    with st.container(key="vitprof-scripts"):
        for script in SCRIPTS:
            st.html(f"<script>{script.read_text()}</script>", unsafe_allow_javascript=True)


def draw_demonstration_note() -> None:
    """Draws the note that this is the demonstration; nothing where the store is the user's own."""
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
