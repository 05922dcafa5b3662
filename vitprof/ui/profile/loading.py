"""Where the loading time of a batch goes, and the patterns that were found in the run."""

from __future__ import annotations

import math

import streamlit as st

from vitprof import charts, formats
from vitprof.analysis.timing.loading import Loading
from vitprof.store import StoredRun
from vitprof.ui.findings import loading_of, verdict_of
from vitprof.ui.plots import plot
from vitprof.ui.texts import escaped, guarded

HEIGHT = 250
"""Leaves room for six names below each other on a narrow screen."""
NAMES: dict[str, str] = {
    "worker-period": "A stall every few batches",
    "slow-worker": "One slow worker",
    "epoch-start": "Slow starts of epochs",
    "first-batch": "A slow first batch",
    "garbage-collection": "Spikes of garbage collection",
    "cold-to-warm": "Cold files that became warm",
    "memory-growth": "Memory that grows",
    "other-programs": "Other programs on the machine",
}
"""`Signature.name` in words."""


@guarded
def draw_loading(run: StoredRun) -> None:
    """The parts of loading as one bar, and how full the queue was."""
    st.markdown(
        "**Where a batch's loading time goes**",
        help="Mean over the steady state, measured where the batch was made: in the loop, a thread or a worker. "
        "Hand-over is what a finished batch took to reach the loop. With several threads on one batch the parts are "
        "thread-seconds.",
    )
    if not run.config.loader_times:
        st.caption("Not measured: *Measure inside the loader* was off in this run, and so it cost nothing.")
        return
    found = loading_of(run.id)
    if not found.n or not found.largest:
        st.caption("This loader cannot tell: its batches are made where vitprof does not look, or in no time at all.")
        return
    figure = charts.loading_bar(found)
    figure.update_layout(legend={"font": {"size": 10}})  # six lines on a narrow screen
    said = _loading_sentence(found)
    plot(figure, height=HEIGHT, key="loading-bar", alt=f"Mean loading time of a batch, by stage. {said}")
    st.caption(said)


def _loading_sentence(found: Loading) -> str:
    said = [f"Most of it is {found.largest}."]
    if math.isfinite(found.busy_frac):
        said.append(f"The loader was busy {formats.percent(found.busy_frac)} of the time.")
    if math.isfinite(found.queue_depth):
        said.append(
            f"When the loop asked, {found.queue_depth:.1f} batches were ready on average, and none in "
            f"{formats.percent(found.queue_empty_frac)} of the cases."
        )
    return " ".join(said)


@guarded
def draw_signatures(run: StoredRun) -> None:
    """One line for each pattern, the costliest first; what it rests on a click away."""
    found = verdict_of(run).signatures
    st.markdown(
        "**Patterns found**",
        help="Rules look for patterns that point at one cause: stalls at every n-th batch, one slow worker, slow "
        "starts of epochs, files read cold, garbage collection, growing memory, other programs.",
    )
    if not found:
        st.caption("None: no rule found a pattern that costs 1% of the time or more.")
    for signature in found:
        cost = f" Cost: {formats.percent(signature.cost_frac)} of the time." if signature.cost_frac > 0 else ""
        name = NAMES.get(signature.name, signature.name)
        st.markdown(f":material/troubleshoot: **{name}.** {escaped(signature.sentence)}{escaped(cost)}")
        with st.expander("Based on"):
            figures = ", ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in signature.evidence.items())
            st.caption(f"{escaped(signature.based_on)}. {escaped(figures)}")
