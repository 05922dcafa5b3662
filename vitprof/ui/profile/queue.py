"""The list of other runs on Profile: what is running or waiting besides the run that the page shows."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from vitprof.analysis.tournament import key_in_words
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import StoredRun
from vitprof.store.groups import read_role
from vitprof.ui import resources
from vitprof.ui.gate import login
from vitprof.ui.group import STOP_HELP, stop_group
from vitprof.ui.profile.runs import behind
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.url_state import show_run

SHOW_HELP = {False: "Show this run on this page.", True: "Its progress and its leaderboard so far."}
"""Whether the line is a tournament -> help of its button Show."""


@guarded
def draw_queue(shown: StoredRun | None) -> None:
    """Draws the other runs that are running or waiting, from whichever tab or program, with a button to show each.

    It does not refresh itself: redrawn every 2 s, it lost clicks on Run. Runs that were made for another run's headroom
    or predictions are one line, and that run's page shows the rest. So are those of a tournament, whose page has the
    buttons for it.
    """
    groups: dict[object, list[StoredRun]] = {}
    for run in resources.store().runs(LIVE_STATUSES, oldest_first=True):
        groups.setdefault(run.group_key or run.id, []).append(run)
    lines = [(runs, target) for runs in groups.values() if (target := behind(runs[0]) or runs[0])]
    others = [(r, t) for r, t in lines if shown is None or shown.id not in {t.id, *(run.id for run in r)}]
    if not others:
        return
    with st.container(border=True):
        st.caption("Also in the queue")
        for runs, target in others:
            first = runs[0]
            tournament = first.group if first.group and first.group.kind == "tournament" else None
            of_tournament = tournament is not None
            left, middle, right = st.columns([4, 1, 1], vertical_alignment="center")
            said = login.started_by(first.started_by)
            left.markdown(_group_label(runs, target) + (f". {escaped(said)}" if said else ""))
            if middle.button("Show", key=f"show-{first.id}", width="stretch", help=SHOW_HELP[of_tournament]):
                if tournament is not None:
                    st.switch_page("pages/tournament.py", query_params={"tournament": str(tournament.of)})
                show_run(target.id)
                st.rerun(scope="app")
            # a tournament that loses one trial goes on with the next: its own page pauses and stops it
            owned = not of_tournament and any(resources.manager().may_stop(run.id) for run in runs)
            end = "Cancel" if all(run.status == "queued" for run in runs) else "Stop"
            if owned and right.button(end, key=f"stop-{first.id}", width="stretch", help=STOP_HELP):
                stop_group(runs)


def _group_label(runs: Sequence[StoredRun], target: StoredRun) -> str:
    """Returns what is running or waiting, in a line of Markdown."""
    first = runs[0]
    group = first.group
    if group is not None and group.run_id is not None:
        return f"{group.kind.capitalize()} of run {target.id}: {escaped(target.name)} ({len(runs)} to go)"
    what = escaped(f"({first.status}, {first.config.device})")
    if group is not None and group.kind == "tournament":
        return f"Tournament {group.of}: {escaped(key_in_words(read_role(first.role)[0]))} {what}"
    if group is not None:
        return f"Tuning {escaped(first.config.strategy)}: {escaped(first.name)} {what}"
    return f"Run {first.id}: {escaped(first.name)} {what}"
