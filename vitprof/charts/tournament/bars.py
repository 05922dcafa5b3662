"""The leaderboard as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import Leaderboard, LeaderboardRow, setting_in_words
from vitprof.charts.style import MARGIN, axis, plain
from vitprof.charts.tournament.shared import (
    BASELINE,
    FRONT_COLOUR,
    LEGEND_BELOW,
    REST_COLOUR,
    comparison_words,
    finish,
    row_words,
)

EQUAL, UNDECIDED, OTHER_CACHE = "as fast, within 5%", "undecided", "another page cache"
"""Names of bars, in the legend."""
GROUPS = {"equal": EQUAL}
"""`LeaderboardRow.standing` -> name of its bars, where they differ."""


def throughput_bars(board: Leaderboard) -> go.Figure:
    """Returns samples/s of the ranked settings as bars with intervals, the fastest on top, and the baseline as a line.

    Settings as fast as the fastest are hatched, those that can be are dotted, those with another page cache are
    crossed. Each bar has its speed-up beside it.
    """
    ranked = [row for row in board.rows if row.rank is not None]
    figure = go.Figure()
    groups = {
        "fastest": ("", FRONT_COLOUR),
        EQUAL: ("/", FRONT_COLOUR),
        UNDECIDED: (".", REST_COLOUR),
        "slower": ("", REST_COLOUR),
        OTHER_CACHE: ("x", REST_COLOUR),
    }
    best = board.row(board.best or "")
    for group, (hatched, colour) in groups.items():
        rows = [row for row in ranked if _group(row, best) == group]
        if not rows:
            continue
        figure.add_bar(
            x=[row.samples_per_s for row in rows],
            y=[plain(setting_in_words(row.entry)) for row in rows],
            orientation="h",
            name=group,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": hatched}},
            hovertext=[row_words(row, board) for row in rows],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    if ranked:
        figure.add_traces(_intervals(ranked, board))
    base = board.row(board.baseline)
    if base is not None and math.isfinite(base.samples_per_s):
        figure.add_vline(x=base.samples_per_s, line={"color": BASELINE, "dash": "dash", "width": 2})
    names = [plain(setting_in_words(row.entry)) for row in ranked]
    equal = sum(r.standing == "equal" and r.entry.page_cache == best.entry.page_cache for r in ranked) if best else 0
    names_axis: dict[str, Any] = {"type": "category", "automargin": True, "fixedrange": True}
    names_axis |= {"range": [max(len(names), 1) - 0.5, -0.5]}  # the same on both sides: texts are beside their bars
    names_axis |= {"categoryorder": "array", "categoryarray": names}
    alt = "Throughput of each setting: no figures yet."
    if best is not None:
        alt = (
            f"Throughput of {len(ranked)} settings; the fastest is {setting_in_words(best.entry)} with "
            f"{formats.number(best.samples_per_s, 'samples/s')}; {equal} as fast within 5%."
        )
    return finish(
        figure,
        "Throughput (dashed: the baseline)",
        alt,
        margin=MARGIN | {"l": 16},
        legend=LEGEND_BELOW,
        showlegend=True,
        xaxis=axis("throughput (samples/s)", range=[0, 1.03 * max(_ends(ranked))] if ranked else None)
        | {"tickformat": "~s", "tickangle": 0, "nticks": 6},
        yaxis=names_axis,
        # texts beside bars have a column of their own: on a narrow screen they would be cut at the end of the bar
        yaxis2=names_axis
        | {"overlaying": "y", "side": "right", "showgrid": False, "tickvals": names}
        | {"ticktext": [_bar_text(row, board) for row in ranked]},
    )


def _ends(rows: Sequence[LeaderboardRow]) -> list[float]:
    """Returns how far each bar reaches, interval included."""
    return [row.high if math.isfinite(row.high) else row.samples_per_s for row in rows]


def _intervals(rows: Sequence[LeaderboardRow], board: Leaderboard) -> list[go.Scatter]:
    """Returns the intervals, dark with a light rim to show on any bar in either theme, and a trace for `yaxis2`."""
    names = [plain(setting_in_words(row.entry)) for row in rows]
    traces = []
    for colour, thickness in (("#FFFFFF", 4), ("#1B2733", 1.5)):
        whisker = {
            "type": "data",
            "symmetric": False,
            "array": [row.high - row.samples_per_s for row in rows],
            "arrayminus": [row.samples_per_s - row.low for row in rows],
            "color": colour,
            "thickness": thickness,
            "width": 5,
        }
        speeds = [row.samples_per_s for row in rows]
        traces.append(go.Scatter(x=speeds, y=names, mode="markers", marker_opacity=0, error_x=whisker))
    # Plotly draws the axis on the right only if a trace uses it
    traces.append(go.Scatter(x=speeds, y=names, yaxis="y2", mode="markers", marker_opacity=0))
    return [trace.update(showlegend=False, hoverinfo="skip", cliponaxis=False) for trace in traces]


def _group(row: LeaderboardRow, best: LeaderboardRow | None) -> str:
    """Returns the name of a setting's bar.

    Cold and warm files are different experiments: neither is compared with the other's fastest.
    """
    if best is not None and row.entry.page_cache != best.entry.page_cache:
        return OTHER_CACHE
    return GROUPS.get(row.standing, row.standing)


def _bar_text(row: LeaderboardRow, board: Leaderboard) -> str:
    if row.key == board.baseline:
        return "baseline"
    if not math.isfinite(row.speed_up):
        return ""
    return f"{formats.number(row.speed_up)}x{comparison_words(row.against_baseline)}"
