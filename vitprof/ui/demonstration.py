"""What the demonstration adds to the pages: a note on every page, and a run that Profile shows at first."""

from __future__ import annotations

import streamlit as st

from vitprof import demo
from vitprof.errors import StoreError
from vitprof.store import StoredRun
from vitprof.ui import resources


def draw_note() -> None:
    """Draws the note that this is the demonstration; nothing where the store is the user's own."""
    if not demo.is_demonstration():
        return
    with st.container(horizontal=True, vertical_alignment="center", key="demonstration"):
        st.caption(
            ":material/science: **Demonstration**: recorded runs. What you run here stays here; start vitprof without "
            "*demo* for your own.",
            width="content",
        )
        st.page_link(
            "pages/tournament.py",
            label="Look at a tournament",
            icon=":material/emoji_events:",
            query_params={"tournament": str(demo.TOURNAMENT)},
        )


def first_shown() -> StoredRun | None:
    """Returns the recorded run that Profile shows until one is chosen; None outside the demonstration, or where that
    run was deleted.
    """
    if not demo.is_demonstration():
        return None
    try:
        return resources.store().run(demo.FIRST_SHOWN)
    except StoreError:  # deleted
        return None
