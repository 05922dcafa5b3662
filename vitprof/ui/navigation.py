"""Every page is reached through app.py, also by its own address.

Streamlit 1.67 finds the folder pages/ by itself until app.py has called `st.navigation` for the first time since the
server started. Until then a page's own address runs its script alone: without navigation, layout and assets.
"""

from __future__ import annotations

import streamlit as st

ENTERED, WANTED = "entered through app.py", "page wanted"


def through_app(page: str) -> None:
    """First thing in a page's script: go through app.py if this session has not, and come back to `page`."""
    if ENTERED not in st.session_state:
        st.session_state[WANTED] = (page, st.query_params.to_dict())
        st.switch_page("app.py")


def enter() -> None:
    """In app.py, after `st.navigation`: on to the page whose address was opened."""
    st.session_state[ENTERED] = True
    if wanted := st.session_state.pop(WANTED, None):
        page, query = wanted
        st.switch_page(page, query_params=query)
