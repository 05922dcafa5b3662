"""The sections under a tournament's leaderboard. One is shown at a time; the others are not computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.analysis import tournament
from vitprof.charts.heat_map import article_heat
from vitprof.charts.tournament import COSTS, break_even_chart, pareto_chart, throughput_bars
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.store import StoredRun
from vitprof.ui import resources, tables
from vitprof.ui.live_chart import plot
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament.state import COLOUR, COST, SECTION, SETTING
from vitprof.ui.tournament.table import COST_COLUMNS, MIB, STATUSES, draw_ways_on
from vitprof.ui.widgets import IN_URL, choose

OF_OWN_SCRIPTS = ("speed", "costs", "setting")
"""Those that mean something for a user's own script: its epochs are not counted, and nothing of it is prepared."""
CHART_PX = 400


def draw_sections(now: TournamentState, board: tournament.Leaderboard) -> None:
    """Draws the choice of a section, and that section."""
    own = now.tournament.spec.script is not None
    names = {name: words for name, (words, _) in SECTIONS.items() if not own or name in OF_OWN_SCRIPTS}
    section = choose(
        SECTION, "Show", names, default="speed", help="Only the section shown is computed.", show_label=False
    )
    guarded(SECTIONS[section][1])(now, board)


def _speed(now: TournamentState, board: tournament.Leaderboard) -> None:
    ranked = sum(row.rank is not None for row in board.rows)
    plot(throughput_bars(board), key="tournament-bars", height=140 + 34 * ranked)


def _article(now: TournamentState, board: tournament.Leaderboard) -> None:
    frame = article_frame(tournament.article_table(board))
    tables.show(
        frame,
        height=tables.height_of(len(frame)),
        key="tournament-article",
        placeholder="–",
        column_config={
            "Setting": st.column_config.TextColumn(pinned=True, help="Strategy, workers, page cache."),
            **{
                name: st.column_config.NumberColumn(name, format="localized", help="Empty: no figure, see its status.")
                for name in frame.columns[1:]
            },
        },
    )
    whole = any(o.summary and o.summary.n_epochs_measured for e in now.entries for o in e.outcomes)
    absent = [m for m in ("GPU memory", "GPU-util") if not any(c.startswith(m) for c in frame.columns)]
    st.caption(
        f"Seconds for an epoch of {board.n_train:,} images"
        + (
            ": measured where every setting saw a whole one."
            if whole
            else ", from the throughput: no run saw a whole one."
        )
        + (f" Not available here: {' and '.join(absent)} (NVML)." if absent else "")
    )


def _heat(now: TournamentState, board: tournament.Leaderboard) -> None:
    values: dict[Literal["epoch_s", "speed_up"], str] = {"epoch_s": "Seconds for an epoch", "speed_up": "Speed-up"}
    value = choose(COLOUR, "Colour", values, default="epoch_s", help="What the cells show.", show_label=False)
    table = tournament.article_table(board)
    plot(article_heat(table, value), key="tournament-heat", height=150 + 40 * len(table.lines))


def _costs(now: TournamentState, board: tournament.Leaderboard) -> None:
    known = [c for c in COSTS if any(r.rank is not None and math.isfinite(tournament.cost(r, c)) for r in board.rows)]
    if not known:
        st.info("No cost is known yet: nothing has ended.")
        return
    against: tournament.Cost | None = st.selectbox(
        "Against",
        known,
        format_func=lambda c: COSTS[c].capitalize(),
        key=COST,
        bind=IN_URL,
        help="What throughput is weighed against. On the dotted line no other setting is better in both.",
        width=320,
    )
    plot(pareto_chart(board, against or known[0]), key="tournament-pareto", height=CHART_PX)
    shown = tables.frame(COST_COLUMNS, [(row, board) for row in board.rows])
    tables.draw(COST_COLUMNS, shown, key="tournament-costs", placeholder="–")


def _break_even(now: TournamentState, board: tournament.Leaderboard) -> None:
    crossings = tournament.break_even(board)
    base = board.row(board.baseline)
    if not crossings or base is None:
        st.info("Needs figures of the baseline and of one more setting.")
        return
    st.markdown(
        f"Against **{escaped(tournament.setting_in_words(base.entry))}**, its preparation included:",
        help="The number of epochs from which a setting's total time is below the baseline's. In brackets: what the "
        "95% interval of its speed-up allows.",
    )
    names = {row.key: tournament.setting_in_words(row.entry) for row in board.rows}
    st.markdown("\n".join(f"- **{escaped(names[b.key])}**: {escaped(b.sentence)}" for b in crossings))
    plot(break_even_chart(board), key="tournament-break-even", height=CHART_PX)


def _setting(now: TournamentState, board: tournament.Leaderboard) -> None:
    """Draws one trial: its runs, and what to do with it."""
    names = {row.key: tournament.setting_in_words(row.entry) for row in board.rows}
    key = st.selectbox(
        "Setting",
        list(names),
        format_func=lambda k: names[k],
        key=SETTING,
        bind=IN_URL,
        help="In the order of the leaderboard.",
    )
    row = board.row(key or "")
    if row is None:
        return
    if row.entry.reason:
        st.info(f"{STATUSES[row.entry.status].capitalize()}: {escaped(row.entry.reason)}")
    if row.entry.status != "refused":
        draw_ways_on(now, row, key="setting")
    if not row.entry.outcomes:
        return
    runs = [resources.store().run(outcome.run_id) for outcome in row.entry.outcomes]
    tables.show(
        pd.DataFrame([_run_line(o.round, run) for o, run in zip(row.entry.outcomes, runs, strict=True)]),
        key="tournament-runs",
        placeholder="–",
        column_config={"Samples/s": st.column_config.NumberColumn(format="localized", help="Steady-state throughput.")},
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("Every step of it:", width="content")
        for outcome in row.entry.outcomes:
            st.page_link(
                "pages/profile.py",
                label=f"run {outcome.run_id} (round {outcome.round})",
                icon=":material/monitoring:",
                query_params={"run": str(outcome.run_id)},
                width="content",
                help="Opens it on Profile: verdict, charts, headroom.",
            )


def _run_line(number: int, run: StoredRun) -> dict[str, str | float]:
    s = run.summary
    return {
        "Round": float(number),
        "Run": float(run.id),
        "Status": run.status,
        "Samples/s": tables.rounded(s.samples_per_s) if s else math.nan,
        "Device idle (%)": tables.rounded(100 * s.device_idle_frac) if s else math.nan,
        "Steps": float(s.n_steady_steps) if s else math.nan,
        "Took (s)": tables.rounded(s.wall_s) if s else math.nan,
        "Remark": run.error or (formats.seconds(s.stage_s) + " of copying first" if s and s.stage_s > 0 else ""),
    }


@dataclass(frozen=True)
class Measure:
    """One of the article's three figures."""

    name: str
    unit: str
    value: Callable[[tournament.LeaderboardRow], float]


MEASURES = (
    Measure("Epoch", "s", lambda c: c.epoch_s),
    Measure("GPU memory", "MiB", lambda c: c.gpu_mem_bytes / MIB),
    Measure("GPU-util", "%", lambda c: c.gpu_util_pct),
)


def article_frame(table: tournament.ArticleTable) -> pd.DataFrame:
    """Returns the article's table: a row for each setting and, for each figure, a column for each batch size. A figure
    that no cell has is left out.
    """
    data: dict[str, Sequence[str] | Sequence[float]] = {"Setting": [line.name for line in table.lines]}
    for measure in MEASURES:
        columns = {
            f"{measure.name} ({measure.unit}), batch {batch:,}": [
                math.nan if (row := line.cells[i]) is None else tables.rounded(measure.value(row))
                for line in table.lines
            ]
            for i, batch in enumerate(table.batch_sizes)
        }
        if any(math.isfinite(v) for values in columns.values() for v in values):
            data |= columns
    return pd.DataFrame(data)


SECTIONS: dict[str, tuple[str, Callable[[TournamentState, tournament.Leaderboard], None]]] = {
    "speed": ("Throughput", _speed),
    "table": ("Epochs by batch size", _article),
    "heat": ("Heat map", _heat),
    "costs": ("What it costs", _costs),
    "break-even": ("Break-even", _break_even),
    "setting": ("One setting", _setting),
}
"""Name in the URL -> label, and the function that draws it."""
