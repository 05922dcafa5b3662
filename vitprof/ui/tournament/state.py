"""What the parts of the Tournament page share: the tournaments and the tuning that this server runs, and what the URL
says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import streamlit as st

from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError, JobError, StoreError, VitprofError
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.tournament.tournament_runner import TournamentRunners
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView
from vitprof.experiments.tuning import Tuning, tune
from vitprof.store.tournaments import NoTournamentError, StoredTournament, list_tournaments, tournament
from vitprof.ui import resources
from vitprof.ui.texts import escaped

VIEWS_KEPT = 100
"""Tournaments whose summaries and blocks (20 numbers for each run) stay in memory: the list needs them too."""
CHOSEN, AGAINST, SECTION = "tournament", "against", "section"
"""Names in the URL: which tournament, the setting to compare with, what is shown below the table."""
COLOUR, COST, SETTING = "colour", "cost", "setting"
"""Names in the URL: what a section shows."""
WATCH_S = 5.0
"""Seconds between an idle page's checks whether another tab or program has changed something."""
UNDER_WAY = ("waiting", "running")


@st.cache_resource(show_spinner=False)
def runners() -> TournamentRunners:
    """Returns the tournaments that this server runs, for all its sessions."""
    started = TournamentRunners(resources.manager())
    resources.at_end(started.shutdown)  # before the manager, registered earlier: no trial starts only to be stopped
    return started


@st.cache_resource(show_spinner=False)
def _starting() -> threading.Lock:
    """Returns the lock held while a tournament or a tuning is started: two tabs that press Start at once start one."""
    return threading.Lock()


@st.cache_resource(show_spinner=False, max_entries=VIEWS_KEPT)
def view(tournament_id: int) -> TournamentView:
    """Returns the view that follows a tournament, shared by all sessions that look at it."""
    return TournamentView(resources.store(), tournament_id)


def running_tournament() -> StoredTournament | None:
    """Returns the tournament that is running, in whichever program; None where none is."""
    return next((t for t in list_tournaments(resources.store()) if t.held), None)


def start(spec: TournamentSpec, name: str) -> int:
    """Starts a tournament unless one is running already; returns the id of the one that runs. Raises `VitprofError`
    where it cannot start, such as `JobError` while a strategy is being tuned.
    """
    with _starting():
        running = running_tournament()
        if running is not None:
            return running.id
        _check_tuning()
        tournament_id = create_tournament(resources.store(), spec, name)
        runners().run(tournament_id)
        return tournament_id


def resume(tournament_id: int) -> None:
    """Continues a tournament, or ends its pause. Raises `VitprofError` where it cannot, such as `JobError` while
    another one is running or a strategy is being tuned.
    """
    with _starting():
        _check_tournament(tournament_id)
        _check_tuning()
        runners().run(tournament_id)


def start_tuning(base: RunConfig | ConfigError, seconds: float, same_batch: bool) -> None:
    """Starts tuning a strategy unless one is being tuned already or the settings cannot work. Raises `JobError` while a
    tournament is running.
    """
    with _starting():
        _check_tournament()
        if isinstance(base, ConfigError):
            return
        manager, sizes = resources.manager(), (base.batch_size,) if same_batch else None
        work().start(
            lambda report, stopped: tune(manager, base, seconds, batch_sizes=sizes, progress=report, stop=stopped)
        )


def _check_tournament(own: int | None = None) -> None:
    running = running_tournament()
    if running is not None and running.id != own:
        raise JobError(f"tournament {running.id} is running; stop or pause it first: they would disturb each other")


def _check_tuning() -> None:
    if work().running:
        raise JobError("a strategy is being tuned; wait for its end or stop it: they would disturb each other")


def chosen() -> tuple[int | None, str]:
    """Returns the tournament that the URL names, if it names one, and why it cannot be shown, "" if it can."""
    named = st.query_params.get(CHOSEN)
    if named is None:
        return None, ""
    gone = f"Tournament {named[:20]} is not here: it was deleted, or the link comes from another machine."
    if not (named.isascii() and named.isdecimal()):
        return None, gone
    try:
        return tournament(resources.store(), int(named)).id, ""
    except NoTournamentError:
        return None, gone
    except StoreError as error:
        return None, str(error)


def open_one(tournament_id: int) -> None:
    """Shows this tournament from the next run of the script on, with nothing chosen on its page yet."""
    for name in (AGAINST, SECTION, COLOUR, COST, SETTING):
        st.session_state.pop(name, None)
    st.query_params[CHOSEN] = str(tournament_id)


def leave() -> None:
    """Goes back to the list."""
    st.query_params.pop(CHOSEN, None)


def signature(now: TournamentState) -> tuple[object, ...]:
    """Returns what the page shows of a tournament besides its progress bar: the page is redrawn when this changes.

    The current run is not part of it, because the bar shows that: so the page is redrawn once for each run, not twice.
    """
    t = now.tournament
    ended = (tuple((o.run_id, o.status) for o in e.outcomes if o.status not in UNDER_WAY) for e in now.entries)
    statuses = ("waiting" if e.status in UNDER_WAY else e.status for e in now.entries)
    return (t.status, t.held, t.note, *ended, *statuses)


def act(do: Callable[[], object]) -> None:
    """Calls `do` in a button's callback. A `VitprofError` is kept for `draw_problem`, which shows it as a line."""
    try:
        do()
    except VitprofError as error:
        st.session_state["tournament-problem"] = str(error)


def act_button(label: str, key: str, icon: str, do: Callable[[], object], help: str, **more: Any) -> None:
    """Draws a button that calls `do` by `act`; `more` is passed to `st.button`."""
    st.button(label, key=key, icon=f":material/{icon}:", on_click=act, args=(do,), help=help, **more)


def draw_problem() -> None:
    """Draws the error that `act` kept."""
    if text := st.session_state.pop("tournament-problem", ""):
        st.error(escaped(text))


@st.cache_resource(show_spinner=False)
def work() -> resources.BackgroundTask[Tuning]:
    """Returns the tuning of this server."""
    resources.manager()  # made first, so that at the end the tuning is stopped while there is still a manager
    return resources.BackgroundTask("vitprof-tuning")
