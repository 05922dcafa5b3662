"""The Tournament page: set one up and see the others, or one tournament from its start to its answer."""

from __future__ import annotations

import streamlit as st

from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament.listing import draw_list
from vitprof.ui.tournament.results import draw_tournament
from vitprof.ui.tournament.setup import draw_setup
from vitprof.ui.tournament.state import chosen, come_back, draw_problem, leave, open_one, running_tournament
from vitprof.ui.tournament.tuning import draw_tuning
from vitprof.ui.url_state import choose

MODES = {"tournament": "Tournament", "tune": "Tune one strategy"}


@guarded
def page() -> None:
    """Draws what the URL names: a tournament, or else the form and the list."""
    come_back()
    tournament_id, problem = chosen()
    if tournament_id is not None:
        draw_tournament(tournament_id)
        return
    if problem:
        st.warning(escaped(problem))
        st.button(
            "Show all tournaments",
            type="primary",
            icon=":material/list:",
            key="tournament-list",
            on_click=leave,
            help="The list of all tournaments, and the form for a new one.",
        )
        return
    st.title("Tournament", anchor=False)
    st.markdown("Which way of loading is the fastest here, and is it worth its cost? Run them against each other.")
    mode = choose(
        "mode",
        "Mode",
        MODES,
        default="tournament",
        help="Strategies against each other, or the best workers, prefetch and batch size for one of them.",
        show_label=False,
    )
    if mode == "tune":
        draw_tuning()
        return
    draw_problem()
    running = running_tournament()
    if running is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.info(f"Tournament {running.id} is running: {escaped(running.name)}.", width="stretch")
            st.button(
                "Show it",
                type="primary",
                key="tournament-show-running",
                on_click=open_one,
                args=(running.id,),
                help="Its progress and its leaderboard so far.",
            )
    draw_setup()
    draw_list()
