"""What the Compare page is set to, in its address: a link or a reload shows the same comparison.

The address wins over what the session remembers, the session over the default; a default stands in no address.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

MAX_RUNS_IN_URL = 400
"""Ids that are read from an address; 2,000 characters of it hold about as many."""


def keep(name: str, value: str) -> None:
    """Remember `value` and put it in the address; "" takes it out of there."""
    st.session_state[_memory(name)] = value
    if value:
        st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]


def kept(name: str) -> str | None:
    """What the address says where that is news, else what the session remembers; None where neither knows."""
    remembered: str | None = st.session_state.get(_memory(name))
    return st.query_params.get(name, remembered)


def is_news(name: str) -> bool:
    """Whether the address says something that this page did not write: a link, a reload, the browser's Back."""
    return name in st.query_params and st.query_params[name] != st.session_state.get(_memory(name))


def ids(text: str | None) -> list[int]:
    """Run numbers from "3,7,12", each once, in order; what is no number is passed over."""
    parts = (text or "").split(",")[:MAX_RUNS_IN_URL]
    return list(dict.fromkeys(int(p) for p in parts if p.isascii() and p.isdecimal() and len(p) < 11))


def choose(
    name: str, words: str, options: Mapping[str, str], *, default: str, help: str, label_visibility: bool = True
) -> str:
    """A segmented control, one of `options` (word in the address -> words on the page); its choice is kept."""
    key = f"compare-{name}"
    known = kept(name)
    before = known if known is not None and known in options else default
    if is_news(name) or st.session_state.get(key) not in options:  # also where a click took the choice away
        st.session_state[key] = before
    clicked = st.segmented_control(
        words,
        list(options),
        format_func=lambda option: options[option],
        key=key,
        help=help,
        label_visibility="visible" if label_visibility else "collapsed",
    )
    chosen = clicked if clicked is not None else before
    keep(name, "" if chosen == default else chosen)
    return chosen


def switch(name: str, words: str, *, help: str) -> bool:
    """A toggle, off unless it is chosen; kept as name=1."""
    key = f"compare-{name}"
    if is_news(name) or key not in st.session_state:
        st.session_state[key] = kept(name) == "1"
    on = st.toggle(words, key=key, help=help)
    keep(name, "1" if on else "")
    return on


def _memory(name: str) -> str:
    return f"compare-kept-{name}"
