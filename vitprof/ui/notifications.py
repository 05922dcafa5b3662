"""Toasts for what a user started or watched and has ended.

Each is shown once, on whichever page the user is by then. They are checked on every run of app.py,
and by a small fragment on pages that do not redraw themselves.
"""

from collections.abc import Callable
from functools import partial

import streamlit as st

from vitprof.analysis.verdict import rendering
from vitprof.errors import VitprofError
from vitprof.store import StoredRun, tournaments
from vitprof.ui import resources, texts

WATCHED = "what is watched"
TO_SAY = "words for the next page"
SHOWN = "what this page shows"
ICONS = {
    "done": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
}
TOURNAMENT_ENDED = {"done": "is done", "paused": "is paused", "stopped": "was stopped"}
ENDED_CHECK_S = 3.0
"""Seconds between an idle page's checks whether something has ended."""
DIALOG_OPEN = "a dialog is open"
"""Set where a dialog is opened: redrawing the page would close it and lose what was typed."""
MAX_TOASTS = 3
"""Toasts shown at once; of the others only the number is shown."""
Ended = Callable[[], tuple[str, str] | None]
"""Returns words, "" for none, and icon of what has ended; None while it goes on."""


def _watched() -> dict[str, Ended]:
    watched: dict[str, Ended] = st.session_state.setdefault(WATCHED, {})
    return watched


def watch(run: StoredRun) -> None:
    """Shows a toast when `run`, which this page shows, ends while the user is on another page.

    On this page its end is seen anyway, and a toast would cover it.
    """
    key = f"run {run.id}"
    st.session_state[SHOWN] = key
    _watched().pop(key, None)
    if run.live:
        _watched()[key] = partial(_run, run.id)


def watch_group(group: str, words: str) -> None:
    """Shows a toast when the last run of `group` ends; `words` name it, such as "Headroom of run
    3".
    """
    _watched()[group] = partial(_group, group, words)


def watch_tournament(tournament_id: int) -> None:
    """Shows a toast when no program is running this tournament any more."""
    _watched()[f"tournament {tournament_id}"] = partial(_tournament, tournament_id)


def say_there(words: str, icon: str) -> None:
    """Shows a toast on the page that is opened next: one from `st.toast` does not outlive
    `st.switch_page`.
    """
    st.session_state.setdefault(TO_SAY, []).append((words, icon))


@texts.guarded
def announce() -> None:
    """Shows the toasts of `say_there`, and one for everything that has ended since.

    What was deleted has none, nor what ended while its own page was drawn.
    """
    ended = _ended()
    ended.pop(st.session_state.pop(SHOWN, ""), None)
    for key in ended:
        del _watched()[key]
    news = [(words, icon) for words, icon in ended.values() if words]
    for words, icon in [*st.session_state.pop(TO_SAY, ()), *news[:MAX_TOASTS]]:
        st.toast(words, icon=icon, duration="long")
    if len(news) > MAX_TOASTS:
        st.toast(f"{len(news) - MAX_TOASTS} more have ended.")


def keep_looking() -> None:
    """Checks every few seconds while something is watched, and redraws the page when it has ended.

    With a dialog open it only shows the toast. Call it after `announce`, on pages that do not
    redraw themselves.
    """
    dialog_open = st.session_state.pop(DIALOG_OPEN, False)
    if _watched():
        st.fragment(_check, run_every=ENDED_CHECK_S)(dialog_open)


def _check(dialog_open: bool) -> None:
    if dialog_open:
        announce()
    elif _ended():
        st.rerun(scope="app")


def _ended() -> dict[str, tuple[str, str]]:
    """Returns words and icon of everything that has ended since; the words are "" where it was
    deleted.
    """
    ended = {}
    for key, news_of in _watched().items():
        try:
            news = news_of()
        except VitprofError:  # deleted meanwhile
            news = "", ""
        if news is not None:
            ended[key] = news
    return ended


def _run(run_id: int) -> tuple[str, str] | None:
    run = resources.store().run(run_id)
    if run.live:
        return None
    reason = run.error
    if run.status == "done":
        reason = rendering.render(run.verdict).brief if run.verdict else ""
    words = f"**{texts.escaped(run.name)}** {run.status}"
    if reason:
        words += f": {texts.escaped(reason)}"
    return words, ICONS.get(run.status, ICONS["failed"])


def _group(group: str, words: str) -> tuple[str, str] | None:
    runs = resources.store().runs(group_key=group)
    if any(run.live for run in runs):
        return None
    if not runs:  # deleted
        return "", ICONS["done"]
    bad = sum(run.status != "done" for run in runs)
    if bad:
        ended = f"ended, {bad} of {len(runs)} runs without a result"
        return f"{texts.escaped(words)}: {ended}.", ICONS["failed"]
    return f"{texts.escaped(words)}: done.", ICONS["done"]


def _tournament(tournament_id: int) -> tuple[str, str] | None:
    stored = tournaments.tournament(resources.store(), tournament_id)
    if stored.held:
        return None
    ended = TOURNAMENT_ENDED.get(stored.status, stored.status)
    icon = ":material/emoji_events:" if stored.status == "done" else ":material/pause:"
    return f"Tournament {tournament_id} {ended}.", icon
