"""Toasts for what a user started or watched and has ended: each once, on whichever page the user is by then.

Checked on every run of app.py, and by a small fragment on pages that do not redraw themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from vitprof.errors import VitprofError
from vitprof.store import StoredRun
from vitprof.store.tournaments import tournament
from vitprof.ui import resources
from vitprof.ui.texts import escaped, guarded

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
"""Toasts shown at once; of the others only the number is shown."""


def watch(run: StoredRun) -> None:
    """Shows a toast when `run`, which this page shows, ends while the user is on another page. On this page its end is
    seen anyway, and a toast would cover it.
    """
    watched = st.session_state.setdefault(RUNS, set())
    if run.live:
        watched.add(run.id)
    else:
        watched.discard(run.id)


def watch_group(group: str, words: str) -> None:
    """Shows a toast when the last run of `group` ends; `words` name the group, such as "Headroom of run 3"."""
    st.session_state.setdefault(GROUPS, {})[group] = words


def watch_tournament(tournament_id: int) -> None:
    """Shows a toast when no program is running this tournament any more."""
    st.session_state.setdefault(TOURNAMENTS, set()).add(tournament_id)


def say_there(words: str, icon: str) -> None:
    """Shows a toast on the page that is opened next: one from `st.toast` does not outlive `st.switch_page`."""
    st.session_state.setdefault(TO_SAY, []).append((words, icon))


@guarded
def announce() -> None:
    """Shows the toasts of `say_there`, and one for everything that has ended since, unless it was deleted."""
    for words, icon in st.session_state.pop(TO_SAY, ()):
        st.toast(words, icon=icon, duration="long")
    ended = _ended()
    for kind, key, _, _ in ended:
        watched = st.session_state[kind]
        watched.pop(key) if kind == GROUPS else watched.remove(key)
    words = [(text, icon) for _, _, text, icon in ended if text]
    for text, icon in words[:MAX_TOASTS]:
        st.toast(text, icon=icon, duration="long")
    if len(words) > MAX_TOASTS:
        st.toast(f"{len(words) - MAX_TOASTS} more have ended.")


def keep_looking() -> None:
    """Checks every few seconds while something is watched, and redraws the page when it has ended.

    With a dialog open it only shows the toast. Call it after `announce`, on pages that do not redraw themselves.
    """
    dialog_open = st.session_state.pop(DIALOG_OPEN, False)
    if any(st.session_state.get(kind) for kind in LOOKS):
        st.fragment(_look, run_every=LOOK_S)(dialog_open)


def _look(dialog_open: bool) -> None:
    if dialog_open:
        announce()
    elif _ended():
        st.rerun(scope="app")


def _ended() -> list[tuple[str, Any, str, str]]:
    """Returns kind, key, words and icon of everything that has ended since; the words are "" where it was deleted."""
    watched = [(kind, key) for kind in LOOKS for key in sorted(st.session_state.get(kind, ()))]
    return [(kind, key, *news) for kind, key in watched if (news := _news(kind, key)) is not None]


def _news(kind: str, key: Any) -> tuple[str, str] | None:
    try:
        return LOOKS[kind](key)
    except VitprofError:  # deleted meanwhile
        return "", ""


def _run(run_id: int) -> tuple[str, str] | None:
    run = resources.store().run(run_id)
    return None if run.live else (ending_in_words(run), ICONS.get(run.status, ICONS["failed"]))


def _group(group: str) -> tuple[str, str] | None:
    runs = resources.store().runs(group_key=group)
    if any(run.live for run in runs):
        return None
    bad = sum(run.status != "done" for run in runs)
    ended = "done" if not bad else f"ended, {bad} of {len(runs)} runs without a result"
    words = f"{escaped(st.session_state[GROUPS][group])}: {ended}." if runs else ""
    return words, ICONS["failed" if bad else "done"]


def _tournament(tournament_id: int) -> tuple[str, str] | None:
    stored = tournament(resources.store(), tournament_id)
    if stored.held:
        return None
    ended = {"done": "is done", "paused": "is paused", "stopped": "was stopped"}.get(stored.status, stored.status)
    icon = ":material/emoji_events:" if stored.status == "done" else ":material/pause:"
    return f"Tournament {tournament_id} {ended}.", icon


LOOKS: dict[str, Callable[[Any], tuple[str, str] | None]] = {RUNS: _run, GROUPS: _group, TOURNAMENTS: _tournament}
"""For each kind, the function that returns words and icon of what has ended; None while it is running."""


def ending_in_words(run: StoredRun) -> str:
    """Returns how a run ended: the first part of its verdict, or why there is none. Markdown."""
    reason = run.error
    if run.status == "done":
        reason = (run.verdict.sentence if run.verdict else "").partition(";")[0]
    return f"**{escaped(run.name)}** {run.status}{f': {escaped(reason)}' if reason else ''}"
