"""Compare: finished runs side by side, and their CSV. What it shows is kept in the URL."""

import streamlit as st

from vitprof.ui.compare.page import draw_comparison
from vitprof.ui.navigation import through_app
from vitprof.ui.texts import guarded


@guarded
def page() -> None:
    """Draws the whole page."""
    st.title("Compare runs", anchor=False)
    draw_comparison()


with through_app("pages/compare.py"):
    page()
