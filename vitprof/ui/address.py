"""The address of a page: which run it shows, and the settings that are not the default.

So a link or a reload shows the same view. Streamlit empties the query when the page changes; what a session looked at
is kept here and put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import streamlit as st

from vitprof.config import BUDGETS
from vitprof.ui.widgets import BUDGET_DEFAULTS, FIELDS, settings

IN_URL: Literal["query-params"] = "query-params"
"""What a widget is given as `bind`: its key is then its name in the URL, and its value is kept there."""
RUN, RUNS = "run", "runs"
LAST_RUN = "run shown last"


def named_run() -> str | None:
    """The run that the address names, else the one that this session looked at last; None where there is neither."""
    named: str | None = st.query_params.get(RUN)
    if named is None and (last := st.session_state.get(LAST_RUN)) is not None:
        named = st.query_params[RUN] = str(last)
    st.session_state[LAST_RUN] = named
    return named


def show_run(run_id: int) -> None:
    """Make `run_id` the run that this session looks at."""
    st.session_state[LAST_RUN] = st.query_params[RUN] = str(run_id)


def forget_run() -> None:
    """Look at no run: the one named is gone."""
    st.session_state.pop(LAST_RUN, None)
    if RUN in st.query_params:
        del st.query_params[RUN]


def changed_settings(values: dict[str, Any]) -> dict[str, str]:
    """Those of the sidebar's settings that are not the default, as a query says them; in the order of `RunConfig`."""
    said = {}
    for name, spec in FIELDS.items():
        value = values[name]
        if name in BUDGETS:
            if values["budget"] != name or (name == "steps" and value == BUDGET_DEFAULTS[name]):
                continue
        elif value == spec.default:
            continue
        if value is not None:
            said[name] = {True: "true", False: "false"}[value] if isinstance(value, bool) else _short(value)
    return said


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def say_settings() -> None:
    """Put the settings into the address. What else it says stays: the run, and what belongs to a page or Streamlit."""
    said = changed_settings(settings())
    before = st.query_params.to_dict()
    wanted = {name: value for name, value in before.items() if name not in FIELDS} | said
    if wanted != before:
        st.query_params.from_dict(wanted)


def choose(
    name: str, words: str, options: Mapping[str, str], *, default: str, help: str, show_label: bool = True
) -> str:
    """Draws a control to choose one of `options` (value -> words on the page); kept in the URL as `name`."""
    chosen = st.segmented_control(
        words,
        list(options),
        format_func=options.__getitem__,
        default=default,
        required=True,
        key=name,
        bind=IN_URL,
        help=help,
        label_visibility="visible" if show_label else "collapsed",
    )
    return chosen or default  # an empty value in the URL leaves it without a choice
