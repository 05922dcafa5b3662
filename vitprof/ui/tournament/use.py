"""What can be done with a setting: use it in the sidebar of Profile, show it as code, open it in Compare."""

from __future__ import annotations

import dataclasses

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament import Leaderboard, LeaderboardRow, setting_in_words
from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.code import script
from vitprof.ui.notifications import DIALOG_OPEN, say_there
from vitprof.ui.profile.settings import use_config
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament.own_script import draw_code
from vitprof.ui.tournament.state import LEFT
from vitprof.ui.tournament.table import ACTED, CODE, COMPARE, USE
from vitprof.ui.url_state import RUNS as RUNS_IN_URL
from vitprof.ui.url_state import changed_settings
from vitprof.ui.widgets import settings

COMPARED = 4
"""Settings that Compare opens with: the first of the leaderboard."""


def draw_ways_on(now: TournamentState, row: LeaderboardRow, *, key: str, board: Leaderboard | None = None) -> None:
    """Draws buttons to use the setting and, given `board`, to compare the first ones; and a switch that shows it as
    code. For a user's own script, the line of code to paste takes the place of all but Compare.
    """
    script = now.tournament.spec.script
    if script is not None:
        draw_code(script, row)
        if board is not None:
            _draw_compare(board)
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Use this setting",
            type="primary" if board is not None else "secondary",
            icon=":material/play_arrow:",
            key=f"tournament-use-{key}",
            help="Opens Profile with this setting in the sidebar. Nothing starts until you press Run.",
        ):
            use(config_of(now, row), f"tournament {now.tournament.id}")
        if board is not None:
            _draw_compare(board)
        code = st.toggle(
            "Copy as code",
            key=f"tournament-code-{key}",
            help="A short script of this loader with these settings, for your own training; it does not need vitprof.",
        )
    if code:
        _code(config_of(now, row), row)


def _draw_compare(board: Leaderboard) -> None:
    ids = compared(board, [r for r in board.rows if r.rank is not None][:COMPARED])
    if st.button(
        "Compare the first",
        icon=":material/compare_arrows:",
        key="tournament-compare",
        disabled=len(ids) < 2,
        help=f"The best run of each of the first {COMPARED} settings, step by step, against the baseline's.",
    ):
        _open_compare(ids, board)


def do_asked(now: TournamentState, board: Leaderboard) -> None:
    """Does what was chosen in a row of the leaderboard."""
    action, key = st.session_state.pop(ACTED, ("", ""))
    row = board.row(key)
    if row is None:  # nothing was chosen, or it was deleted meanwhile
        return
    if action == USE:
        use(config_of(now, row), f"tournament {now.tournament.id}")
    elif action == CODE:
        st.session_state[DIALOG_OPEN] = True
        show_code(config_of(now, row), row)
    elif action == COMPARE:
        _open_compare(compared(board, [row]), board)


def config_of(now: TournamentState, row: LeaderboardRow) -> RunConfig:
    """Returns the job of a setting."""
    return next(trial.config for trial in now.planned if trial.key == row.key)


def use(config: RunConfig, whose: str) -> None:
    """Opens Profile with this job in the sidebar, and says so there."""
    use_config(dataclasses.replace(config, name=""))
    say_there(f"The settings of {whose} are in the sidebar. Press Run to start.", ":material/tune:")
    # with the settings in the URL, which Profile would put there: so one press of Back leads here again
    leave_for("pages/profile.py", changed_settings(settings()))


def leave_for(page: str, query: dict[str, str]) -> None:
    """Opens another page with this query, and lets the browser's Back find this one as it was.

    `st.switch_page` puts an entry with the new query and the old page into the browser's history, on which Back lands.
    """
    st.session_state[LEFT] = {name: st.query_params.get_all(name) for name in st.query_params}
    st.switch_page(page, query_params=query)


def compared(board: Leaderboard, rows: list[LeaderboardRow]) -> list[int]:
    """Returns the ids of the best run of each of these settings, and of the baseline."""
    base = board.row(board.baseline)
    found = [best_run(row) for row in [*rows, *([base] if base is not None else [])]]
    return list(dict.fromkeys(run_id for run_id in found if run_id is not None))


def _open_compare(ids: list[int], board: Leaderboard) -> None:
    query = {RUNS_IN_URL: ",".join(map(str, ids))}
    base = board.row(board.baseline)
    if base is not None and (own := best_run(base)) is not None:
        query["baseline"] = str(own)  # else Compare takes the slowest
    leave_for("pages/compare.py", query)


def best_run(row: LeaderboardRow) -> int | None:
    """Returns the id of a setting's run with the highest throughput, among those that count if any does; else None."""
    ended = [o for o in row.entry.outcomes if o.summary is not None and o.status in ("done", "cut")]
    counted = [o for o in ended if o.round not in row.spoiled]
    best = max(counted or ended, key=lambda o: o.summary.samples_per_s if o.summary else 0.0, default=None)
    return best.run_id if best is not None else None


@st.dialog("As code", width="large", icon=":material/code:")
@guarded
def show_code(config: RunConfig, row: LeaderboardRow) -> None:
    """Draws a dialog with the script of a setting."""
    st.markdown(f"**{escaped(setting_in_words(row.entry))}**")
    _code(config, row)


def _code(config: RunConfig, row: LeaderboardRow) -> None:
    found = f"{formats.number(row.samples_per_s, 'samples/s')} in a tournament ({setting_in_words(row.entry)})"
    try:
        st.code(script(config, found), language="python", height=420)
    except VitprofError as error:
        st.caption(f":material/info: {escaped(str(error))}")
