"""What app.py adds to every page: styles beyond the theme, and a way to skip the navigation by keyboard."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

STYLE = Path(__file__).with_name("style.css")
SKIP_LINK = Path(__file__).with_name("skip_link.js")


def apply_style() -> None:
    """Adds the style sheet to the page; it takes no room."""
    st.html(STYLE)


def add_skip_link() -> None:
    """Adds the button "Skip to Run", the first that the Tab key reaches."""
    with st.container(key="vitprof-skip-script"):
        st.html(f"<script>{SKIP_LINK.read_text()}</script>", unsafe_allow_javascript=True)
