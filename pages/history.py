"""History: every run, to find, to open, to name, to take along. What it shows is kept in the URL."""

import streamlit as st

from vitprof.ui.history.page import draw_history
from vitprof.ui.navigation import through_app
from vitprof.ui.texts import guarded


@guarded
def page() -> None:
    st.title("History", anchor=False)
    draw_history()


with through_app("pages/history.py"):
    page()
