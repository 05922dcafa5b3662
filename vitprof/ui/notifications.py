"""A word when what a person started or watched has finished, once, on whichever page they are by then.

Looked at on every run of app.py, and by a small fragment where the page does not draw itself again.
"""

from __future__ import annotations

import streamlit as st

from vitprof.errors import VitprofError
from vitprof.store import StoredRun
from vitprof.store.tournaments import tournament
from vitprof.ui import resources
from vitprof.ui.texts import escaped, guarded

RUNS, GROUPS, TOURNAMENTS = "runs watched", "groups watched", "tournaments watched"
ICONS = {
    "done": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
    "interrupted": ":material/error:",
}
LOOK_S = 3.0
"""How often a page that stands still looks whether something has ended."""
DIALOG_OPEN = "a dialog is open"
"""Set where a dialog is opened: drawing the page again would close it, and lose what was typed."""
MAX_TOASTS = 3
"""Words at once; with more to say only the number of the others is said."""


def watch(run: StoredRun) -> None:
    """Say a word when `run` ends, if it has not."""
    if run.live:
        st.session_state.setdefault(RUNS, set()).add(run.id)


def watch_group(group: str, words: str) -> None:
    """Say a word when the last of the runs of `group` ends; `words` say what it is, such as "Headroom of run 3"."""
    st.session_state.setdefault(GROUPS, {})[group] = words


def watch_tournament(tournament_id: int) -> None:
    """Say a word when nobody works on this tournament any more."""
    st.session_state.setdefault(TOURNAMENTS, set()).add(tournament_id)


@guarded
def announce() -> None:
    """Say what has ended since. A run that was deleted meanwhile is passed over."""
    words = [*_ended_runs(), *_ended_groups(), *_ended_tournaments()]
    for text, icon in words[:MAX_TOASTS]:
        st.toast(text, icon=icon, duration="long")
    if len(words) > MAX_TOASTS:
        st.toast(f"{len(words) - MAX_TOASTS} more have ended.")


def keep_looking() -> None:
    """While something is watched: look every few seconds, and draw the page once more when it has ended.

    With a dialog open only the word is said. Call it after `announce`, on pages that do not draw themselves again.
    """
    asking = st.session_state.pop(DIALOG_OPEN, False)
    if any(st.session_state.get(kind) for kind in (RUNS, GROUPS, TOURNAMENTS)):
        st.fragment(_look, run_every=LOOK_S)(asking)


def _look(asking: bool) -> None:
    if asking:
        announce()
    elif _news():
        st.rerun(scope="app")


def _news() -> bool:
    """Whether `announce` would say or forget something."""
    runs: set[int] = st.session_state.get(RUNS, set())
    groups: dict[str, str] = st.session_state.get(GROUPS, {})
    held: set[int] = st.session_state.get(TOURNAMENTS, set())
    try:
        return (
            any(not resources.store().run(run_id).live for run_id in runs)
            or any(not any(run.live for run in resources.store().runs(group_key=group)) for group in groups)
            or any(not tournament(resources.store(), number).held for number in held)
        )
    except VitprofError:  # deleted meanwhile
        return True


def _ended_runs() -> list[tuple[str, str]]:
    watched: set[int] = st.session_state.get(RUNS, set())
    said = []
    for run_id in sorted(watched):
        try:
            run = resources.store().run(run_id)
        except VitprofError:
            watched.discard(run_id)
            continue
        if not run.live:
            watched.discard(run_id)
            said.append((ending_in_words(run), ICONS.get(run.status, ICONS["failed"])))
    return said


def _ended_groups() -> list[tuple[str, str]]:
    watched: dict[str, str] = st.session_state.get(GROUPS, {})
    said = []
    for group, words in list(watched.items()):
        runs = resources.store().runs(group_key=group)
        if any(run.live for run in runs):
            continue
        del watched[group]
        bad = sum(run.status != "done" for run in runs)
        if runs:
            ended = "done" if not bad else f"ended, {bad} of {len(runs)} runs without a result"
            said.append((f"{escaped(words)}: {ended}.", ICONS["failed" if bad else "done"]))
    return said


def _ended_tournaments() -> list[tuple[str, str]]:
    watched: set[int] = st.session_state.get(TOURNAMENTS, set())
    said = []
    for tournament_id in sorted(watched):
        try:
            found = tournament(resources.store(), tournament_id)
        except VitprofError:
            watched.discard(tournament_id)
            continue
        if not found.held:
            watched.discard(tournament_id)
            ended = {"done": "is done", "paused": "is paused", "stopped": "was stopped"}.get(found.status, found.status)
            icon = ":material/emoji_events:" if found.status == "done" else ":material/pause:"
            said.append((f"Tournament {tournament_id} {ended}.", icon))
    return said


def ending_in_words(run: StoredRun) -> str:
    """How a run ended: the first part of its verdict, or why there is none. Markdown."""
    why = run.error
    if run.status == "done":
        why = str((run.verdict or {}).get("sentence", "")).partition(";")[0]
    return f"**{escaped(run.name)}** {run.status}{f': {escaped(why)}' if why else ''}"
