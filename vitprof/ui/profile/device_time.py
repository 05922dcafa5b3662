"""Where the device's time went: added up, step by step in a window, and over the whole run."""

from __future__ import annotations

import streamlit as st

from vitprof import charts, formats
from vitprof.analysis.timing.timeline import timeline
from vitprof.store import StoredRun
from vitprof.ui.findings import Idle, all_columns, idle_of
from vitprof.ui.plots import WITH_ZOOM, plot
from vitprof.ui.profile.live import is_simulated_run
from vitprof.ui.texts import guarded

WINDOW = 30
"""Steps in the time line: about as many as can be told apart."""
BEFORE = 3
"""Steps drawn in front of the largest gap."""
BAR_HEIGHT, LINE_HEIGHT, HEAT_HEIGHT = 160, 240, 110


@guarded
def draw_device_time(run: StoredRun) -> None:
    """The bar, the time line and the row of colours; nothing for a run that only loaded."""
    if run.config.loader_only:
        return
    simulated = " (simulated)" if is_simulated_run(run) else ""
    st.markdown(
        f"**Where the device's time went{simulated}**",
        help="Steady state, from marks of the device. Each moment in which it computed nothing counts for the one "
        "thing that the step was waiting for: data wait, the copy (H2D), host work (Python, launches, optimizer), the "
        "change of epochs, vitprof's own recording, or other. Point at a part for its 95% interval.",
    )
    found = idle_of(run.id)
    if found is None:
        st.caption("No steady step tells when the device computed, so its time cannot be added up.")
        return
    said = _idle_sentence(found)
    plot(
        charts.device_time(found.gaps, found.intervals),
        height=BAR_HEIGHT,
        key="device-time",
        alt=f"The device's time by what it was spent on, as one bar. {said}",
    )
    st.caption(said)
    st.fragment(_draw_window)(run, found)
    st.markdown(
        "**Idle share over the run**",
        help="The whole run in 500 pieces of the same length, from the first step to the last. Blank: evaluation.",
    )
    plot(
        charts.idle_heat(found.edges_s, found.share, origin_s=run.t_origin_s or 0.0),
        height=HEAT_HEIGHT,
        key="idle-heat",
        alt="Share of the time that the device was idle, over the run, as a row of colours",
    )


def _idle_sentence(found: Idle) -> str:
    gaps, idle = found.gaps, found.intervals["idle"]
    hidden = formats.seconds(gaps.hidden_wait_ns / 1e9)
    return (
        f"Idle {formats.percent(idle.value)} ({formats.percent(idle.low)} to {formats.percent(idle.high)}) of "
        f"{formats.seconds(gaps.span_s)} over {len(gaps.step):,} steady steps. Data waits of {hidden} were hidden "
        "behind queued work of the device and cost nothing."
    )


@guarded
def _draw_window(run: StoredRun, found: Idle) -> None:
    """The time line of some steps, and what moves it."""
    steps = all_columns(run.id)
    last = max(len(steps["step"]) - WINDOW, 0)
    key = f"window-{run.id}"
    around = min(max(found.worst - BEFORE, 0), last)
    st.session_state.setdefault(key, around)
    st.session_state[key] = min(max(int(st.session_state[key]), 0), last)

    def move(to: int) -> None:
        st.session_state[key] = min(max(to, 0), last)

    st.markdown(
        "**Step by step**",
        help="The loop's line: data wait, host work (launches and all that Python does), recording. The copy's line. "
        "The device's line: compute, and gaps in the colour of what they waited for. Zoom in for details.",
    )
    first = st.session_state[key]
    if last:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            for words, icon, to, text in (
                ("Earlier", ":material/chevron_left:", first - WINDOW, f"The {WINDOW} steps before these."),
                ("Largest gap", ":material/search:", around, "Where the device idled longest at once."),
                ("Later", ":material/chevron_right:", first + WINDOW, f"The {WINDOW} steps after these."),
            ):
                st.button(words, icon=icon, key=f"window-{words}", on_click=move, args=(to,), help=text)
            st.slider(
                "First step",
                0,
                last,
                key=key,
                help=f"The chart shows {WINDOW} steps from this one on.",
                width="stretch",
            )
        first = st.session_state[key]
    plot(
        charts.timeline_chart(
            timeline(steps, run.phases, first, first + WINDOW),
            origin_s=run.t_origin_s or 0.0,
        ),
        height=LINE_HEIGHT,
        key="timeline",
        alt=f"What loop, copy and device did, step by step, for {WINDOW} steps from step {first:,} on",
        config=WITH_ZOOM,
    )
