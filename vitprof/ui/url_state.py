"""The URL of a page: which run it shows, and the settings that are not the default.

So a link or a reload shows the same view. A widget that is bound (`IN_URL`) keeps its value in the URL by itself. The
sidebar's settings cannot be bound: Streamlit would write their labels there, such as "cuda:0 (NVIDIA H100)", remove
what a strategy hides, and silently drop invalid values, where the page should say what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import streamlit as st

from vitprof.config import BUDGETS
from vitprof.ui.widgets import BUDGET, BUDGET_DEFAULTS, DEFAULTS, FIELDS, settings

Option = TypeVar("Option", bound=str)
IN_URL: Literal["query-params"] = "query-params"
"""A widget's `bind` argument: its key is then its name in the URL, and its value is kept there."""
RUN, RUNS = "run", "runs"


def show_run(run_id: int) -> None:
    """Makes `run_id` the run that this page shows."""
    st.query_params[RUN] = str(run_id)


def changed_settings(values: dict[str, Any]) -> dict[str, str]:
    """Returns the sidebar's settings that are not the default, as query parameters in the order of `RunConfig`."""
    said = {}
    for name, default in DEFAULTS.items():
        value = values[name]
        if name in BUDGETS:
            if values["budget"] != name or (name == BUDGET and value == BUDGET_DEFAULTS[name]):
                continue
        elif value == default:
            continue
        if value is not None:
            said[name] = {True: "true", False: "false"}[value] if isinstance(value, bool) else _short(value)
    return said


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def say_settings() -> None:
    """Writes the settings into the URL. Its other parameters stay: the run, and those of a page or of Streamlit."""
    said = changed_settings(settings())
    for name in [name for name in st.query_params if name in FIELDS and name not in said]:
        del st.query_params[name]
    if changed := {name: value for name, value in said.items() if st.query_params.get(name) != value}:
        st.query_params.update(changed)


def choose(
    name: str, words: str, options: Mapping[Option, str], *, default: Option, help: str, show_label: bool = True
) -> Option:
    """Draws a control to choose one of `options` (value -> label); returns the value, which the URL keeps as `name`."""
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
