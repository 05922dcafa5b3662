"""The list of tournaments: open one, delete one."""

from __future__ import annotations

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament import key_in_words
from vitprof.config.accelerators import is_simulated
from vitprof.store import RunQuery
from vitprof.store.groups import read_role
from vitprof.store.tournaments import StoredTournament, delete_tournament, list_tournaments, release, tournament
from vitprof.ui import resources
from vitprof.ui.notifications import DIALOG_OPEN
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament.state import open_one

SHOWN = 10
DONE = "tournament-done"
MORE = "tournaments shown"
STATUSES = {"queued": "not begun", "running": "running", "paused": "paused", "stopped": "stopped", "done": "done"}


def draw_list() -> None:
    """All of them, the newest first; without any, what a tournament is."""
    if words := st.session_state.pop(DONE, None):
        st.toast(words, icon=":material/check:")
    store = resources.store()
    most = st.session_state.setdefault(MORE, SHOWN)
    found = list_tournaments(store, limit=most + 1)
    if not found:
        draw_empty()
        return
    st.markdown("**Tournaments**")
    for t in found[:most]:
        _draw_line(t)
    if len(found) > most:
        st.button("Show older ones", key="tournaments-more", on_click=_more, help="Ten more.")


def draw_empty() -> None:
    """Draws what a newcomer reads."""
    st.markdown(
        "A tournament runs strategies, batch sizes and numbers of workers against each other, in turns and several "
        "times over, and names the one setting to use, with its reason. Settings that are known to differ by less "
        "than 5% are equal; while too little is known, the answer is undecided and more rounds are run. "
        "What fails stays in the table and says why. The form says how long the choices take before"
        " anything starts."
    )


def _draw_line(t: StoredTournament) -> None:
    with st.container(border=True):
        left, middle, right = st.columns([5, 4, 4], vertical_alignment="center")
        is_running = t.status == "running"
        status = f":blue[{STATUSES[t.status]}]" if is_running else STATUSES[t.status]
        left.markdown(
            f"**{t.id}: {escaped(t.name)}**  \n:small[{status}, {escaped(when(t.created_utc))}, "
            f"{escaped(t.spec.base.device)}]"
        )
        middle.markdown(escaped(best_so_far(t)))
        with right.container(horizontal=True):
            st.button(
                "Open",
                key=f"tournament-open-{t.id}",
                icon=":material/open_in_full:",
                on_click=open_one,
                args=(t.id,),
                help="Its leaderboard, charts and recommendation.",
            )
            if st.button(
                "Delete",
                key=f"tournament-ask-{t.id}",
                icon=":material/delete:",
                disabled=t.held and not t.holder_host,
                help="Asks before it deletes.",
            ):
                st.session_state[DIALOG_OPEN] = True
                ask_to_delete(t.id)


@st.dialog("Delete tournament?", icon=":material/delete:")
@guarded
def ask_to_delete(tournament_id: int) -> None:
    """The question before a tournament is deleted."""
    t = tournament(resources.store(), tournament_id)
    n = resources.store().count_runs(RunQuery(group_key=t.group_key, helpers=True))
    runs = f"{n:,} {'run' if n == 1 else 'runs'}"
    st.markdown(f"**{t.id}: {escaped(t.name)}** and its {runs}. **This cannot be undone.**")
    if t.holder_host:
        st.markdown(f"It was begun on another machine ({escaped(t.holder_host)}): make sure that it is gone.")
    with st.container(horizontal=True):
        yes = st.button(
            "Delete it",
            type="primary",
            icon=":material/delete:",
            key=f"tournament-delete-{t.id}",
            help="The tournament with all its runs.",
        )
        if st.button("Keep it", key=f"tournament-keep-{t.id}", help="Closes this and changes nothing."):
            st.rerun()
    if yes:
        _delete(t, f"Tournament {t.id} and its {runs} deleted")


@guarded
def _delete(t: StoredTournament, words: str) -> None:
    if t.holder_host:
        release(resources.store(), t.id)
    delete_tournament(resources.store(), t.id)
    st.session_state[DONE] = words
    st.rerun()


def best_so_far(t: StoredTournament) -> str:
    """Its fastest run, in words: one line of the runs, not the leaderboard, which rests on every step."""
    query = RunQuery(group_key=t.group_key, helpers=True, statuses=("done",), sort="samples_per_s")
    row = next(iter(resources.store().list_runs(query, limit=1)), None)
    if row is None or row.samples_per_s is None:
        return "no figures yet"
    simulated = " (simulated)" if is_simulated(t.spec.base.device) else ""
    setting = key_in_words(read_role(row.role)[0])
    return f"fastest run: {setting}, {formats.number(row.samples_per_s, 'samples/s')}{simulated}"


def when(utc: str) -> str:
    """Returns a time of the store as a person reads it."""
    return f"{utc[:10]} {utc[11:16]} UTC"


def _more() -> None:
    st.session_state[MORE] += SHOWN
