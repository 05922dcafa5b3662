"""One tournament: the answer first, then the leaderboard, then charts and details."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shlex
from collections.abc import Sequence

import streamlit as st

from vitprof.analysis import tournament
from vitprof.config.accelerators import is_simulated
from vitprof.config.own_script import OwnScript
from vitprof.experiments.tournament.planning import PlannedTrial, rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.tournament import tournament_csv, tournament_object
from vitprof.ui.texts import escaped, guarded, simulated_badge
from vitprof.ui.tournament.live import draw_state
from vitprof.ui.tournament.sections import draw_sections
from vitprof.ui.tournament.state import AGAINST, draw_problem, leave, view
from vitprof.ui.tournament.table import STATUSES, do_asked, draw_table, draw_ways_on
from vitprof.ui.widgets import IN_URL


@guarded
def draw_tournament(tournament_id: int) -> None:
    """Draws the whole page of one tournament."""
    follows = view(tournament_id)
    now = follows.look()
    _draw_title(now)
    draw_problem()
    draw_state(now)
    answer = st.container()
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with row:
        base = _pick_baseline(follows.board(now), now.baseline)
    board = follows.board(dataclasses.replace(now, baseline=base))
    recommendation = tournament.recommend(board, keep=now.baseline)
    with answer:
        _draw_answer(now, board, recommendation)
    with row:
        _downloads(now, board, recommendation)
    live = now.tournament.held
    own = now.tournament.spec.script is not None
    draw_table(board, recommendation.key if recommendation is not None else None, live=live, own_script=own)
    do_asked(now, board)
    for remark in remarks_told(now.planned):
        st.caption(escaped(f"{remark[0].upper()}{remark[1:]}."))
    _draw_reasons(board)
    if board.best is not None and (not live or _wants_charts()):
        draw_sections(now, board)


def _wants_charts() -> bool:
    return st.toggle(
        "Charts so far",
        key="tournament-charts",
        help="Draws the charts now, and again after each run. Without it they appear when the last run has ended.",
    )


def _draw_title(now: TournamentState) -> None:
    t = now.tournament
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(escaped(t.name), anchor=False, width="content")
        if is_simulated(t.spec.base.device):
            simulated_badge()
        st.button(
            "All tournaments",
            key="tournament-back",
            icon=":material/arrow_back:",
            type="tertiary",
            on_click=leave,
            help="The list, and the form for a new one. This one keeps running.",
        )
    spec = t.spec
    budget = next((n, b) for b in ("seconds", "steps", "epochs") if (n := getattr(spec.base, b)))
    lasts = f"{budget[0]:g} {budget[1].removesuffix('s') if budget[0] == 1 else budget[1]}"
    what = f"{spec.base.dataset}, ViT {spec.base.model} on {spec.base.device}"
    what = what if spec.script is None else title_words(spec.script)
    st.caption(
        escaped(
            f"Tournament {t.id}: {what}; each run {lasts}, "
            f"{rounds_words(spec)}" + ("; settings that are clearly too slow are cut short" if spec.early_stop else "")
        )
    )


def _pick_baseline(board: tournament.Leaderboard, own: str) -> str:
    """Draws the choice of the setting to compare with, `own` unless another one is chosen; returns its key."""
    names = {row.key: tournament.setting_in_words(row.entry) for row in board.rows if row.n_runs or row.key == own}
    chosen: str | None = st.selectbox(
        "Baseline",
        list(names),
        index=list(names).index(own),
        format_func=names.__getitem__,
        key=AGAINST,
        bind=IN_URL,
        help="The setting that speed-ups and break-even are measured against.",
        width=340,
    )
    return chosen or own


def _draw_answer(
    now: TournamentState, board: tournament.Leaderboard, recommendation: tournament.Recommendation | None
) -> None:
    """Draws the recommendation, or why there is none."""
    with st.container(border=True, key="tournament-answer"):
        if recommendation is None:
            over = not now.tournament.held and now.tournament.status == "done"
            st.markdown(
                "**No setting gave a figure.** The reasons are below the table: give runs more time, or choose others."
                if over
                else "**No figures yet.** The first come when the first run has ended."
            )
            return
        through = now.tournament.status == "done" and not now.tournament.held
        heading = "Recommended" if through else "Best so far"
        st.header("Not decided yet" if recommendation.key is None else heading, anchor=False)
        st.markdown(escaped(recommendation.sentence))
        row = board.row(recommendation.key or "")
        if row is not None:
            draw_ways_on(now, row, key="best", board=board)


def _draw_reasons(board: tournament.Leaderboard) -> None:
    """Draws why trials failed, were cut short or refused, in full: the table has no room for it."""
    for row in board.rows:
        if row.spoiled:
            st.caption(escaped(f"{tournament.setting_in_words(row.entry)}: {tournament.spoiled_words(row)}."))
    for entry in (row.entry for row in board.rows if row.entry.losses):
        st.caption(f":material/warning: {escaped(f'{tournament.setting_in_words(entry)}: {entry.losses}.')}")
    if text := tournament.uneven_words(board):
        st.caption(escaped(text))
    explained = [row for row in board.rows if row.entry.reason]
    if not explained:
        return
    counts = {status: sum(row.entry.status == status for row in explained) for status in STATUSES}
    text = ", ".join(f"{n} {STATUSES[s]}" for s, n in counts.items() if n)
    with st.expander(f"Why: {text}"):
        words, entries = tournament.setting_in_words, [row.entry for row in explained]
        lines = (f"- **{escaped(words(e))}**, {STATUSES[e.status]}: {escaped(e.reason)}" for e in entries)
        st.markdown("\n".join(lines))


def _downloads(
    now: TournamentState, board: tournament.Leaderboard, recommendation: tournament.Recommendation | None
) -> None:
    t = now.tournament
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")

    def csv() -> bytes:
        return tournament_csv(t, board, tournament.break_even(board), recommendation).encode()

    def text() -> bytes:
        return json.dumps(tournament_object(t, board, tournament.break_even(board), recommendation), indent=2).encode()

    for words, mime, make, ending in (("CSV", "text/csv", csv, "csv"), ("JSON", "application/json", text, "json")):
        st.download_button(
            words,
            data=make,
            file_name=f"vitprof-tournament-{t.id}-{stamp}.{ending}",
            mime=mime,
            on_click="ignore",
            key=f"tournament-{ending}",
            icon=":material/download:",
            help=f"The leaderboard as {words}: one entry for each trial with figures, intervals, status and reason.",
        )


def title_words(script: OwnScript) -> str:
    """Returns what was run and varied, in a line."""
    given = "; ".join(f"{name} {', '.join(map(_written, values))}" for name, values in script.vary)
    return f"{shlex.join(script.command)} in {script.directory}; {given}"


def remarks_told(planned: Sequence[PlannedTrial]) -> tuple[str, ...]:
    """Returns the remarks on what was left out of settings or added to them, each once."""
    return tuple(dict.fromkeys(remark for t in planned if t.setting is not None for remark in t.setting.remarks))


def _written(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
