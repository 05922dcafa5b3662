"""What app.py adds to every page: styles beyond the theme, a skip link for the keyboard, one Back for each page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

STYLE = Path(__file__).with_name("style.css")
SCRIPTS = tuple(Path(__file__).with_name(name) for name in ("skip_link.js", "history_entries.js"))


def apply_style() -> None:
    """Adds the style sheet to the page; it takes no room."""
    st.html(STYLE)


def add_scripts() -> None:
    """Adds the button "Skip to Run", the first that the Tab key reaches, and what makes each page one Back away."""
    with st.container(key="vitprof-scripts"):
        for script in SCRIPTS:
            st.html(f"<script>{script.read_text()}</script>", unsafe_allow_javascript=True)
