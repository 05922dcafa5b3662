"""Which run a page shows, what is queued, and what to say when there is nothing."""

from __future__ import annotations

import streamlit as st

from vitprof.errors import StoreError
from vitprof.records import LIVE_STATUSES
from vitprof.store import StoredRun
from vitprof.ui import resources


def chosen_run() -> StoredRun | None:
    """The run that the URL names, else the one that is going on, else none.

    In the URL, so that a reload or a link shows the same run.
    """
    named = st.query_params.get("run")
    if named is not None:
        try:
            return resources.store().run(int(named))
        except (ValueError, StoreError):
            st.warning(f"There is no run {named} any more.")
            del st.query_params["run"]
    running = resources.store().runs(["running"], limit=1)
    return running[0] if running else None


def draw_queue(shown: StoredRun | None) -> None:
    """Other runs that are going on or waiting, from whichever tab or program, with a way to each."""
    others = [
        run for run in resources.store().runs(LIVE_STATUSES, oldest_first=True) if shown is None or run.id != shown.id
    ]
    if not others:
        return
    with st.container(border=True):
        st.caption("Also in the queue")
        for run in others:
            left, middle, right = st.columns([4, 1, 1], vertical_alignment="center")
            left.markdown(f"Run {run.id}: {_escaped(run.name)} ({run.status}, {run.config.device})")
            if middle.button("Show", key=f"show-{run.id}", width="stretch"):
                st.query_params["run"] = str(run.id)
                st.rerun()
            if resources.manager().owns(run.id) and right.button("Stop", key=f"stop-{run.id}", width="stretch"):
                resources.manager().stop(run.id)


def _escaped(text: str) -> str:
    """A run's name in Markdown without becoming Markdown."""
    return "".join("\\" + c if c in r"\`*_{}[]()#+-.!|<>$:~" else c for c in text)


def draw_empty() -> None:
    """What a newcomer sees."""
    st.title("Is your GPU starved by data loading?", anchor=False)
    st.markdown(
        "vitprof trains a small Vision Transformer for a short while under a loading strategy of your choice and shows "
        "where the time of every batch goes. Gaps in the chart are time in which the device had nothing to do.\n\n"
        "1. Press **Run** in the sidebar: `per-sample` is how most tutorials load data.\n"
        "2. Choose the strategy `memory` and press **Run** again.\n"
        "3. Open **Compare** to see what changed, and take it home as CSV."
    )
