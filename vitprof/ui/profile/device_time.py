"""Where the device's time went, added up over the steady state."""

from __future__ import annotations

import streamlit as st

from vitprof import charts, formats
from vitprof.store import StoredRun
from vitprof.ui.findings import Idle, idle_of
from vitprof.ui.plots import plot
from vitprof.ui.profile.live import is_simulated_run
from vitprof.ui.texts import guarded

HEIGHT = 160
HELP = (
    "Steady state, timed on the device. Each moment in which it computed nothing counts for the one thing that the "
    "step was waiting for: data wait, the copy (H2D), host work (Python, launches, optimizer), the change of epochs, "
    "vitprof's own recording, what a script does outside its step, or other. Launch bubbles are the part of "
    "compute in which the device waited for the next launch; they are known where about ten steps were launched in "
    "advance, which shows how long the kernels alone take. Point at a part for its 95% interval."
)


def title(run: StoredRun) -> str:
    """Returns the heading of the chart."""
    return f"Where the device's time went{' (simulated)' if is_simulated_run(run) else ''}"


@guarded
def draw_device_time(run: StoredRun) -> None:
    """Draws the bar and its sentence; for a run that only loaded, why there is none."""
    if run.config.loader_only:
        st.caption(
            "No model was trained, so no device could wait. Run the same settings with training to see whether this "
            "is fast enough: switch off *Loader only* under *More*."
        )
        return
    found = idle_of(run.id)
    if found is None:
        st.caption("No steady step has device times, so they cannot be added up.")
        return
    said = _idle_sentence(found)
    plot(
        charts.device_time(found.gaps, found.intervals),
        height=HEIGHT,
        key="device-time",
        alt=f"The device's time by what it was spent on, as one bar. {said}",
    )
    st.caption(said)


def _idle_sentence(found: Idle) -> str:
    gaps, idle = found.gaps, found.intervals["idle"]
    said = (
        f"The device was idle {formats.percent(idle.value)} ({formats.percent(idle.low)} to "
        f"{formats.percent(idle.high)}) of {formats.seconds(gaps.span_s)}, over {found.n:,} steady steps."
    )
    if (bubbles := found.intervals.get("launch_idle")) and bubbles.value > 0:
        said += (
            f" It waited another {formats.percent(bubbles.value)} ({formats.percent(bubbles.low)} to "
            f"{formats.percent(bubbles.high)}) for launches inside its steps."
        )
    if gaps.hidden_wait_ns:
        hidden = formats.seconds(gaps.hidden_wait_ns / 1e9)
        said += f" Another {hidden} of data waits cost nothing: the device still had work queued."
    return said
