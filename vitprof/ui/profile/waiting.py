"""Before a run's first step: its place in the queue, then how far its start is, with the seconds of each part."""

from __future__ import annotations

import math

import streamlit as st

from vitprof import formats
from vitprof.analysis.timing.startup import WORDS, StartPhase, start_phases
from vitprof.jobs.manager import queue_of
from vitprof.records import LIVE_STATUSES
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.address import RUN
from vitprof.ui.texts import escaped

CANCEL_HELP = "Takes the run out of the queue. It has not begun, so nothing is lost."
WAITED = "run that this page showed in the queue"
ORDINALS = {1: "st", 2: "nd", 3: "rd"}


def draw_queued(run: StoredRun) -> None:
    """Draws the place of a queued run in its device's queue, and Cancel."""
    before = ahead_of(run)
    if not before:  # it begins in a moment: no other button in Stop's place for that
        st.progress(0.0, text="starting")
        return
    st.session_state[WAITED] = run.id
    with st.container(horizontal=True, vertical_alignment="center", key="queued"):
        st.markdown(f":material/hourglass_empty: {escaped(place_in_words(before))}", width="content")
        jobs = resources.manager()
        if jobs.owns(run.id) and st.button("Cancel", key="cancel-button", icon=":material/close:", help=CANCEL_HELP):
            jobs.stop(run.id)
            st.query_params.pop(RUN, None)
            st.rerun(scope="app")


def begun(run: StoredRun) -> bool:
    """Returns True once, when a run that had to wait has left the queue: Stop takes the place of Cancel."""
    if run.status == "queued" or st.session_state.get(WAITED) != run.id:
        return False
    del st.session_state[WAITED]
    return True


def ahead_of(run: StoredRun) -> list[StoredRun]:
    """Returns the runs that this one waits for, the next one to end first."""
    mine = queue_of(run.config.device)
    live = resources.store().runs(LIVE_STATUSES, oldest_first=True)
    ahead = [
        r
        for r in live
        if r.id < run.id and (r.owner_host, r.owner_pid) == (run.owner_host, run.owner_pid)
        if queue_of(r.config.device) == mine
    ]
    return sorted(ahead, key=lambda r: (r.status != "running", r.id))


def place_in_words(before: list[StoredRun]) -> str:
    """Returns a place in the queue, in words; the run that has the device is the first one there."""
    last = before[-1]
    return f"Queued: {ordinal(len(before) + 1)} in the queue, behind run {last.id} ({last.name})"


def ordinal(number: int) -> str:
    """Returns 2nd for 2."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ORDINALS.get(last, 'th')}"


def draw_start(run: StoredRun, now: float) -> None:
    """Draws the phases of a run's start, as long as it has made no step."""
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
