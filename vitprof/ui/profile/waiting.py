"""A run before its first step: its place in the queue, then the phases of its start with the seconds of each."""

from __future__ import annotations

import math

import streamlit as st

from vitprof import formats
from vitprof.analysis.timing.startup import WORDS, StartPhase, start_phases
from vitprof.jobs.scheduling import Ahead, ahead_of, why_waiting
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.texts import escaped
from vitprof.ui.url_state import RUN

CANCEL_HELP = "Takes the run out of the queue. It has not begun, so nothing is lost."
NOW_HELP = (
    "Does not wait for jobs of other programs: they run at the same time and slow each other down. Both runs keep a "
    "notice of that."
)
SHARE_HELP = (
    "Runs on different devices run side by side where all of them were started with *Share the machine* (under "
    "*More*). Such a run says so, and Compare warns."
)
WAITED = "run that this page showed in the queue"
ORDINALS = {1: "st", 2: "nd", 3: "rd"}


def draw_queued(run: StoredRun) -> None:
    """Draws what a queued run waits for and why, its place in the queue, and Cancel."""
    before = ahead_of(resources.store(), run.id)
    if not before:  # it starts in a moment: no other button takes Stop's place for that
        st.progress(0.0, text="starting")
        return
    st.session_state[WAITED] = run.id
    with st.container(horizontal=True, vertical_alignment="center", key="queued"):
        said = place_in_words(before, shares=run.config.share_machine)
        st.markdown(f":material/hourglass_empty: {escaped(said)}", width="content", help=SHARE_HELP)
        jobs = resources.manager()
        may = jobs.may_stop(run.id)
        if may and st.button("Cancel", key="cancel-button", icon=":material/close:", help=CANCEL_HELP):
            jobs.stop(run.id)
            st.query_params.pop(RUN, None)
            st.rerun(scope="app")
        if may and all(ahead.owner for ahead in before) and _run_now():
            jobs.run_now(run.id)


def _run_now() -> bool:
    return st.button("Run now", key="run-now-button", icon=":material/fast_forward:", help=NOW_HELP)


def begun(run: StoredRun) -> bool:
    """Returns True once, when a run that had to wait has left the queue: Stop takes the place of Cancel."""
    if run.status == "queued" or st.session_state.get(WAITED) != run.id:
        return False
    del st.session_state[WAITED]
    return True


def place_in_words(before: list[Ahead], *, shares: bool) -> str:
    """Returns what a run waits for, and its place in the queue; a run that is running is the first one there."""
    said = why_waiting(before, shares=shares)
    return f"{said[0].upper()}{said[1:]}. It is {ordinal(len(before) + 1)} in the queue."


def ordinal(number: int) -> str:
    """Returns a number as an ordinal, such as "2nd"."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ORDINALS.get(last, 'th')}"


def draw_start(run: StoredRun, now: float) -> None:
    """Draws the phases of the start of a run that has made no step yet."""
    copies = run.config.location not in (None, "disk")
    found = start_phases(run.t_origin_s, run.phases, run.training_since_s, now, copies=copies)
    with st.container(horizontal=True, key="start-phases"):
        for phase in found:
            st.markdown(_line(phase), width="content")


def _line(phase: StartPhase) -> str:
    words = WORDS[phase.name]
    if math.isnan(phase.seconds):
        return f":gray[:material/radio_button_unchecked: {words}]"
    icon = ":material/pending:" if phase.running else ":material/check_circle:"
    return f"{icon} {words} {escaped(formats.seconds(phase.seconds) if phase.seconds >= 0.05 else '0.0 s')}"
