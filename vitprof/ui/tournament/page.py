"""The page Try fixes: one tournament from start to answer, or the form for one and the list of
them.
"""

from functools import partial

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.recommend import recommend, title
from vitprof.config.accelerators import device_in_words
from vitprof.experiments.tournament.alike import all_failed_words
from vitprof.store import RunQuery
from vitprof.store.tournaments import (
    StoredTournament,
    delete_tournament,
    list_tournaments,
    release,
    tournament,
)
from vitprof.ui import navigation, notifications, resources, texts
from vitprof.ui.tournament import results, setup, state


@texts.guarded
def page() -> None:
    navigation.come_back(state.CHOSEN)
    tournament_id = state.chosen()
    if tournament_id is not None:
        results.draw_tournament(tournament_id)
        return
    st.title("Try fixes", anchor=False)
    st.markdown(
        "Which way of loading is the fastest here, and is it worth its cost? Run them against each "
        "other."
    )
    texts.draw_problem()
    running = state.running_tournament()
    if running is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.info(
                f"Tournament {running.id} is running: {texts.escaped(running.name)}.",
                width="stretch",
            )
            do = partial(state.open_one, running.id)
            about = "Its progress and its leaderboard so far."
            texts.act_button(
                "Show it", "tournament-show-running", "visibility", do, about, type="primary"
            )
    setup.draw_setup()
    draw_list()
    number = None if running is None else running.id
    st.fragment(_draw_when_changed, run_every=state.WATCH_S)(number)


def _draw_when_changed(running: int | None) -> None:
    """Draws the page anew where another tournament runs than the one drawn as `running`, or none any
    more: one may be started from a console."""
    now = state.running_tournament()
    if (None if now is None else now.id) != running:
        st.rerun(scope="app")


SHOWN = 10
"""Tournaments in the list at first, and that a press adds."""
MORE = "tournaments shown"
STATUSES = {
    "queued": "not started",
    "running": "running",
    "paused": "paused",
    "stopped": "stopped",
    "done": "done",
}


def draw_list() -> None:
    store = resources.store()
    most = st.session_state.setdefault(MORE, SHOWN)
    tournaments = list_tournaments(store, limit=most + 1)
    if not tournaments:
        st.markdown(
            "A tournament runs strategies, batch sizes and numbers of workers alternately, and "
            "names the one setting to use, with the reason. While we cannot tell them apart yet, more "
            "rounds are run."
        )
        return
    st.header("Tournaments", anchor=False)
    for t in tournaments[:most]:
        _draw_line(t)
    if len(tournaments) > most:
        st.button("Show older ones", key="tournaments-more", on_click=_more, help="Ten more.")


def _draw_line(t: StoredTournament) -> None:
    with st.container(border=True):
        left, middle, right = st.columns([5, 4, 4], vertical_alignment="center")
        status = STATUSES[t.status]
        if t.status == "running":
            status = f":blue[{status}]"
        when = texts.escaped(f"{t.created_utc[:10]} {t.created_utc[11:16]} UTC")
        device = texts.escaped(device_in_words(t.spec.base.device))
        about = f":small[{status}, {when}, {device}]"
        left.markdown(f"**{t.id}: {texts.escaped(t.name)}**  \n{about}")
        with middle:
            _draw_answer(t)
        with right.container(horizontal=True):
            do = partial(state.open_one, t.id)
            about = "Its leaderboard, charts and recommendation."
            texts.act_button("Open", f"tournament-open-{t.id}", "open_in_full", do, about)
            if st.button(
                "Delete",
                key=f"tournament-ask-{t.id}",
                icon=":material/delete:",
                disabled=t.held and not t.holder_host,
                help="Asks before it deletes.",
            ):
                st.session_state[notifications.DIALOG_OPEN] = True
                ask_to_delete(t.id)


@texts.guarded
def _draw_answer(t: StoredTournament) -> None:
    viewed = state.view(t.id)
    now = viewed.state()
    board = viewed.board(now)
    best = recommend(board, goes_on=now.goes_on)
    ended = t.status == "done" and not t.held
    named = None if best is None else board.row(best.while_busy or best.key or "")
    if best is None:
        words = all_failed_words(now) or "no figures yet"
    elif named is None or best.outcome == "undecided":
        words = "too early" if best.outcome == "too early" else "undecided"
        if ended:  # nothing more comes: it says why
            words = best.sentences[0].removesuffix(".")
    else:
        standing = title(best, ended=ended).lower()
        figure = formats.number(named.samples_per_s, "samples/s")
        if named.while_busy is not None:
            figure = named.while_busy.words
        words = f"{standing}: {setting_in_words(named.entry)}, {figure}"
        if t.spec.base.simulated:
            words += " (simulated)"
    st.markdown(texts.escaped(words))


@st.dialog("Delete tournament?", icon=":material/delete:")
@texts.guarded
def ask_to_delete(tournament_id: int) -> None:
    t = tournament(resources.store(), tournament_id)
    n_runs = resources.store().count_runs(RunQuery(group_key=t.group_key, helpers=True))
    runs = formats.count(n_runs, "run")
    st.markdown(f"**{t.id}: {texts.escaped(t.name)}** and its {runs}. **This cannot be undone.**")
    if t.holder_host:
        st.markdown(
            f"It was started on another machine ({texts.escaped(t.holder_host)}): make sure that "
            "it is gone."
        )
    if texts.confirmed("Delete it", "tournament", "The tournament with all its runs."):
        if t.holder_host:
            release(resources.store(), t.id)
        delete_tournament(resources.store(), t.id)
        notifications.say_there(f"Tournament {t.id} and its {runs} deleted", ":material/check:")
        st.rerun()


def _more() -> None:
    st.session_state[MORE] += SHOWN
