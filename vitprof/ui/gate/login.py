"""A login through somebody else's accounts (OpenID Connect), where the operator configured one for Streamlit."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitprof.ui.texts import escaped

SECTION = "auth"
"""Of .streamlit/secrets.toml, see https://docs.streamlit.io/develop/concepts/connections/authentication."""
NAMES = ("email", "preferred_username", "name", "sub")
"""What a provider may say of a person, the plainest first that no two of them share."""


def is_configured() -> bool:
    """Returns whether pages ask for a login."""
    return bool(st.secrets.load_if_toml_exists()) and SECTION in st.secrets


def is_missing() -> bool:
    """Returns whether whoever is at the page has to log in first."""
    return is_configured() and not st.user.is_logged_in


def person() -> str:
    """Returns who is logged in at the page whose script this is; "" where nobody is, and outside of a script."""
    if get_script_run_ctx(suppress_warning=True) is None or not is_configured() or is_missing():
        return ""
    return next((str(st.user[name]) for name in NAMES if st.user.get(name)), "somebody without a name")


def started_by(name: str) -> str:
    """Returns who started something, in a sentence; "" where nobody logs in."""
    return f"Started by {name or 'whoever uses this machine'}." if is_configured() else ""


def require() -> None:
    """Shows nothing but the way to log in to whoever has to, and ends the script there."""
    if not is_configured():
        return
    if not is_missing():
        with st.sidebar.container(horizontal=True, vertical_alignment="center", key="person"):
            st.caption(escaped(person()), width="stretch")
            st.button("Log out", key="log-out", type="tertiary", on_click=st.logout)
        return
    st.title("vitprof", anchor=False)
    for provider in _providers():
        st.button(
            f"Log in with {escaped(provider)}" if provider else "Log in",
            key=f"log-in-{provider}",
            type="primary",
            on_click=st.login,
            args=(provider,) if provider else (),
        )
    st.stop()


def _providers() -> list[str]:
    """Returns the providers by name; "" for one that has none."""
    auth = st.secrets[SECTION]
    named = [name for name, value in auth.items() if isinstance(value, Mapping)]
    return ([""] if "client_id" in auth else []) + named
