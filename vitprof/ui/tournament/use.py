"""From a setting that won to using it: the sidebar, code, and the Compare page."""

from __future__ import annotations

import dataclasses

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament import Leaderboard, LeaderboardRow, setting_in_words
from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.export.code import script
from vitprof.ui.profile.settings import use_config
from vitprof.ui.texts import escaped

COMPARED = 4
"""Settings that Compare opens with: the first of the leaderboard."""


def draw_ways_on(config: RunConfig, row: LeaderboardRow, *, key: str, board: Leaderboard | None = None) -> None:
    """Buttons: use the setting, compare it; and the setting as code, made when it is asked for."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Use this setting",
            type="primary" if board is not None else "secondary",
            icon=":material/play_arrow:",
            key=f"tournament-use-{key}",
            help="Puts it into the sidebar of Profile. Nothing starts yet.",
        ):
            use_config(dataclasses.replace(config, name=""))
            st.switch_page("pages/profile.py", query_params={})
        if board is not None:
            _compare(board)
        code = st.toggle(
            "Copy as code",
            key=f"tournament-code-{key}",
            help="A short script of this loader with these settings, for your own training; it does not need vitprof.",
        )
    if code:
        _code(config, row)


def _compare(board: Leaderboard) -> None:
    """A way to Compare with the best run of each of the first settings."""
    ids = [str(best) for row in board.rows[:COMPARED] if row.rank is not None and (best := best_run(row)) is not None]
    base = board.row(board.baseline)
    if base is not None and (own := best_run(base)) is not None and str(own) not in ids:
        ids.append(str(own))
    if st.button(
        "Compare the first",
        icon=":material/compare_arrows:",
        key="tournament-compare",
        disabled=len(ids) < 2,
        help=f"The best run of each of the first {COMPARED} settings and of the baseline, step by step.",
    ):
        st.switch_page("pages/compare.py", query_params={"runs": ",".join(ids)})


def best_run(row: LeaderboardRow) -> int | None:
    """Returns the run of a setting with the highest throughput."""
    ended = [o for o in row.entry.outcomes if o.summary is not None and o.status in ("done", "cut")]
    best = max(ended, key=lambda o: o.summary.samples_per_s if o.summary else 0.0, default=None)
    return best.run_id if best is not None else None


def _code(config: RunConfig, row: LeaderboardRow) -> None:
    found = f"{formats.number(row.samples_per_s, 'samples/s')} in a tournament ({setting_in_words(row.entry)})"
    try:
        st.code(script(config, found), language="python", height=420)
    except VitprofError as error:
        st.caption(f":material/info: {escaped(str(error))}")
