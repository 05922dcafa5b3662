"""A login with the accounts of an OpenID Connect provider, where the operator configured one for Streamlit."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitprof.ui.texts import escaped

SECTION = "auth"
"""Section of .streamlit/secrets.toml: https://docs.streamlit.io/develop/concepts/connections/authentication."""
SHOWN = ("email", "preferred_username", "name")
"""Claims of a provider that may name a user, in the order in which they are tried. None of them has to be unique, but
for an email address that the provider has verified; "sub" is, and always there
(https://openid.net/specs/openid-connect-core-1_0.html#StandardClaims)."""


def is_configured() -> bool:
    """Returns whether pages ask for a login."""
    return bool(st.secrets.load_if_toml_exists()) and SECTION in st.secrets


def is_missing() -> bool:
    """Returns whether the user of this page has to log in first."""
    return is_configured() and not st.user.is_logged_in


def person() -> str:
    """Returns the user who is logged in to the page whose script this is; "" where nobody is, and outside a script.

    No two users of a provider that sends "sub" have the same name here: what one of them started the other one cannot
    stop.
    """
    if get_script_run_ctx(suppress_warning=True) is None or not is_configured() or is_missing():
        return ""
    claims = st.user.to_dict()
    if claims.get("email") and str(claims.get("email_verified")).lower() == "true":
        return str(claims["email"])
    shown = next((str(claims[name]) for name in SHOWN if claims.get(name)), "")
    subject = str(claims.get("sub", ""))
    return f"{shown} ({subject})" if shown and subject else shown or subject or "a user without a name"


def started_by(name: str) -> str:
    """Returns a sentence about who started something; "" where no login is configured."""
    return f"Started by {name or 'a user of this machine'}." if is_configured() else ""


def require() -> None:
    """Draws only the buttons to log in where the user has to, and ends the script there. To a user who is logged in it
    draws their name and a button to log out.
    """
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
