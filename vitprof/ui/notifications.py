"""Toasts for what a user started or watched and has ended: each once, on whichever page the user is by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from vitprof.errors import VitprofError
from vitprof.store import StoredRun, tournaments
from vitprof.ui import resources, texts

RUNS, GROUPS, TOURNAMENTS = "runs watched", "groups watched", "tournaments watched"
TO_SAY = "words for the next page"
ICONS = {
    "done": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
    "interrupted": ":material/error:",
}
LOOK_S = 3.0
"""Seconds between an idle page's checks whether something has ended."""
DIALOG_OPEN = "a dialog is open"
"""Set where a dialog is opened: redrawing the page would close it and lose what was typed."""
MAX_TOASTS = 3


def watch(run: StoredRun) -> None:
    """Shows a toast when `run`, which this page shows, ends while the user is on another, not here."""
    watched = st.session_state.setdefault(RUNS, set())
    (watched.add if run.live else watched.discard)(run.id)


def watch_group(group: str, words: str) -> None:
    st.session_state.setdefault(GROUPS, {})[group] = words


def watch_tournament(tournament_id: int) -> None:
    st.session_state.setdefault(TOURNAMENTS, set()).add(tournament_id)


def say_there(words: str, icon: str) -> None:
    """Shows a toast on the page that is opened next: one from `st.toast` does not outlive `st.switch_page`."""
    st.session_state.setdefault(TO_SAY, []).append((words, icon))


@texts.guarded
def announce() -> None:
    """Shows the toasts of `say_there`, and one for everything that has ended since, unless it was deleted."""
    news = []
    for kind, key, words, icon in _ended():
        watched = st.session_state[kind]
        watched.pop(key) if kind == GROUPS else watched.remove(key)
        news += [(words, icon)] if words else []
    for words, icon in [*st.session_state.pop(TO_SAY, ()), *news[:MAX_TOASTS]]:
        st.toast(words, icon=icon, duration="long")
    if len(news) > MAX_TOASTS:
        st.toast(f"{len(news) - MAX_TOASTS} more have ended.")


def keep_looking() -> None:
    """Checks every few seconds what is watched; redraws the page when it has ended, unless a dialog is open."""
    dialog_open = st.session_state.pop(DIALOG_OPEN, False)
    if any(st.session_state.get(kind) for kind in LOOKS):
        st.fragment(_look, run_every=LOOK_S)(dialog_open)


def _look(dialog_open: bool) -> None:
    if dialog_open:
        announce()
    elif _ended():
        st.rerun(scope="app")


def _ended() -> list[tuple[str, Any, str, str]]:
    ended = []
    for kind, look in LOOKS.items():
        for key in sorted(st.session_state.get(kind, ())):
            try:
                news = look(key)
            except VitprofError:  # deleted meanwhile
                news = "", ""
            ended += [(kind, key, *news)] if news is not None else []
    return ended


def _run(run_id: int) -> tuple[str, str] | None:
    run = resources.store().run(run_id)
    if run.live:
        return None
    reason = run.error  # of a run that is done: the first part of its verdict
    if run.status == "done":
        reason = (run.verdict.sentence if run.verdict else "").partition(";")[0]
    words = f"**{texts.escaped(run.name)}** {run.status}{f': {texts.escaped(reason)}' if reason else ''}"
    return words, ICONS.get(run.status, ICONS["failed"])


def _group(group: str) -> tuple[str, str] | None:
    runs = resources.store().runs(group_key=group)
    if any(run.live for run in runs):
        return None
    bad = sum(run.status != "done" for run in runs)
    ended = "done" if not bad else f"ended, {bad} of {len(runs)} runs without a result"
    words = f"{texts.escaped(st.session_state[GROUPS][group])}: {ended}." if runs else ""
    return words, ICONS["failed" if bad else "done"]


def _tournament(tournament_id: int) -> tuple[str, str] | None:
    stored = tournaments.tournament(resources.store(), tournament_id)
    if stored.held:
        return None
    ended = {"done": "is done", "paused": "is paused", "stopped": "was stopped"}.get(stored.status, stored.status)
    icon = ":material/emoji_events:" if stored.status == "done" else ":material/pause:"
    return f"Tournament {tournament_id} {ended}.", icon


LOOKS: dict[str, Callable[[Any], tuple[str, str] | None]] = {RUNS: _run, GROUPS: _group, TOURNAMENTS: _tournament}
"""For each kind, the function that returns words and icon of what has ended; None while it is running."""
