"""Runs that belong together, such as headroom's anchors: started once even if two tabs ask, shown as one bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import streamlit as st

from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.texts import escaped

POLL_S = 1.0
"""Seconds between a page's looks at a group that is running."""
STOP_HELP = "Stops after the current step and keeps what was measured so far."


@st.cache_resource(show_spinner=False)
def _starting() -> threading.Lock:
    """Returns the lock held while a group is started: two tabs that press the button at once start it once."""
    return threading.Lock()


def live_runs(group: str) -> list[StoredRun]:
    """Returns the runs of a group that are queued or running, the oldest first."""
    return [run for run in resources.store().runs(group_key=group, oldest_first=True) if run.live]


def start_once(group: str, start: Callable[[], object]) -> None:
    """Calls `start` unless the group is running already. Errors of `start` are passed on."""
    with _starting():
        if not live_runs(group):
            start()


def stop_group(runs: Sequence[StoredRun]) -> None:
    """Stops the runs that this dashboard started and this user may stop, the last one first, so that none starts
    meanwhile.
    """
    jobs = resources.manager()
    for run in reversed(runs):
        if jobs.may_stop(run.id):
            jobs.stop(run.id)


def draw_progress(runs: Sequence[StoredRun], total: int, say: Callable[[StoredRun], str], *, key: str) -> None:
    """Draws a group's progress and a button that stops it. `runs` are those left of `total`; `say` names the current
    one, as Markdown.
    """
    current = next((run for run in runs if run.status == "running"), runs[0])
    total = max(total, len(runs))
    done = total - len(runs)
    within = (current.progress or 0.0) if current.stage == "training" else 0.0
    stage = escaped(current.message) if current.status == "queued" else current.stage
    text = f"{say(current)}, {min(done + 1, total)} of {total}: {stage or 'starting'}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min((done + within) / total, 1.0), text=text, width="stretch")
        owned = any(resources.manager().may_stop(run.id) for run in runs)
        if owned and st.button("Stop", key=f"stop-{key}", icon=":material/stop:", help=STOP_HELP):
            stop_group(runs)
