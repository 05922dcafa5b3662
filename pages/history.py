"""History: finds, opens, names and exports runs. What it shows is kept in the URL."""

import streamlit as st

from vitprof.ui.history.page import draw_history
from vitprof.ui.navigation import through_app
from vitprof.ui.texts import guarded


@guarded
def page() -> None:
    """Draws the whole page."""
    st.title("History", anchor=False)
    draw_history()


with through_app("pages/history.py"):
    page()
