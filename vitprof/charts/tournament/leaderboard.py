"""The leaderboard as bars, and the article's table in colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis import tournament
from vitprof.charts.style import MARGIN, axis, categories, hover_texts, plain
from vitprof.charts.tournament import shared

EQUAL, UNDECIDED, OTHER_CACHE = "as fast, within 5%", "undecided", "another page cache"
"""Names of bars, in the legend."""
GROUPS = {"equal": EQUAL}
"""`LeaderboardRow.standing` -> name of its bars, where they differ."""


def throughput_bars(board: tournament.Leaderboard) -> go.Figure:
    """Returns samples/s of the ranked settings as bars with intervals, the fastest on top, and the baseline as a line.

    Settings as fast as the fastest are hatched, those that can be are dotted, those with another page cache are
    crossed. Each bar has its speed-up beside it.
    """
    ranked = [row for row in board.rows if row.rank is not None]
    figure = go.Figure()
    groups = {
        "fastest": ("", shared.FRONT_COLOUR),
        EQUAL: ("/", shared.FRONT_COLOUR),
        UNDECIDED: (".", shared.REST_COLOUR),
        "slower": ("", shared.REST_COLOUR),
        OTHER_CACHE: ("x", shared.REST_COLOUR),
    }
    best = board.row(board.best or "")
    for group, (hatched, colour) in groups.items():
        rows = [row for row in ranked if _group(row, best) == group]
        if not rows:
            continue
        figure.add_bar(
            x=[row.samples_per_s for row in rows],
            y=[plain(tournament.setting_in_words(row.entry)) for row in rows],
            orientation="h",
            name=group,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": hatched}},
            **hover_texts([shared.row_words(row, board) for row in rows]),
        )
    if ranked:
        figure.add_traces(_intervals(ranked, board))
    base = board.row(board.baseline)
    if base is not None and math.isfinite(base.samples_per_s):
        figure.add_vline(x=base.samples_per_s, line={"color": shared.BASELINE, "dash": "dash", "width": 2})
    names = [plain(tournament.setting_in_words(row.entry)) for row in ranked]
    equal = sum(r.standing == "equal" and r.entry.page_cache == best.entry.page_cache for r in ranked) if best else 0
    # the same range on both sides: texts are beside their bars
    names_axis = categories(names, automargin=True, range=[max(len(names), 1) - 0.5, -0.5])
    alt = "Throughput of each setting: no figures yet."
    if best is not None:
        alt = (
            f"Throughput of {len(ranked)} settings; the fastest is {tournament.setting_in_words(best.entry)} with "
            f"{formats.number(best.samples_per_s, 'samples/s')}; {equal} as fast within 5%."
        )
    return shared.finish(
        figure,
        "Throughput (dashed: the baseline)",
        alt,
        margin=MARGIN | {"l": 16},
        legend=shared.LEGEND_BELOW,
        showlegend=True,
        xaxis=axis("throughput (samples/s)", range=[0, 1.03 * max(_ends(ranked))] if ranked else None)
        | {"tickformat": "~s", "tickangle": 0, "nticks": 6},
        yaxis=names_axis,
        # texts beside bars have a column of their own: on a narrow screen they would be cut at the end of the bar
        yaxis2=names_axis
        | {"overlaying": "y", "side": "right", "showgrid": False, "tickvals": names}
        | {"ticktext": [_bar_text(row, board) for row in ranked]},
    )


def _ends(rows: Sequence[tournament.LeaderboardRow]) -> list[float]:
    """Returns how far each bar reaches, interval included."""
    return [row.high if math.isfinite(row.high) else row.samples_per_s for row in rows]


def _intervals(rows: Sequence[tournament.LeaderboardRow], board: tournament.Leaderboard) -> list[go.Scatter]:
    """Returns the intervals, dark with a light rim to show on any bar in either theme, and a trace for `yaxis2`."""
    names = [plain(tournament.setting_in_words(row.entry)) for row in rows]
    traces, speeds = [], [row.samples_per_s for row in rows]
    for colour, thickness in (("#FFFFFF", 4), ("#1B2733", 1.5)):
        whisker = shared.speed_whiskers(rows, color=colour, thickness=thickness, width=5)
        traces.append(go.Scatter(x=speeds, y=names, mode="markers", marker_opacity=0, error_x=whisker))
    # Plotly draws the axis on the right only if a trace uses it
    traces.append(go.Scatter(x=speeds, y=names, yaxis="y2", mode="markers", marker_opacity=0))
    return [trace.update(showlegend=False, hoverinfo="skip", cliponaxis=False) for trace in traces]


def _group(row: tournament.LeaderboardRow, best: tournament.LeaderboardRow | None) -> str:
    """Returns the name of a setting's bar.

    Cold and warm files are different experiments: neither is compared with the other's fastest.
    """
    if best is not None and row.entry.page_cache != best.entry.page_cache:
        return OTHER_CACHE
    return GROUPS.get(row.standing, row.standing)


def _bar_text(row: tournament.LeaderboardRow, board: tournament.Leaderboard) -> str:
    if row.key == board.baseline:
        return "baseline"
    if not math.isfinite(row.speed_up):
        return ""
    return f"{formats.number(row.speed_up)}x{shared.comparison_words(row.against_baseline)}"


def article_heat(table: tournament.ArticleTable, value: Literal["epoch_s", "speed_up"] = "epoch_s") -> go.Figure:
    """Returns seconds for an epoch, or the speed-up over the baseline, by setting (rows) and batch size (columns).

    Bright is fast, on a logarithmic scale. A cell without a figure is empty and says why. The scale is Cividis, made
    for people with and without colour vision deficiency (Nunez, Anderton and Renslow, PLoS ONE 2018).
    """
    x = [f"{batch:,}" for batch in table.batch_sizes]
    y = [plain(line.name) for line in table.lines]
    z: list[list[float | None]] = []
    texts: list[list[str]] = []
    hovers: list[list[str]] = []
    empty: list[tuple[str, str, str, str]] = []
    for line, name in zip(table.lines, y, strict=True):
        z.append([])
        texts.append([])
        hovers.append([])
        for cell, batch in zip(line.cells, x, strict=True):
            number = getattr(cell, value) if cell is not None else math.nan
            known = (
                math.isfinite(number)
                and number > 0
                and cell is not None
                and cell.entry.status not in tournament.OUT_OF_THE_RACE
            )
            hover = _cell_in_words(cell, f"{name}, batch {batch}")
            z[-1].append(math.log10(number) if known else None)
            texts[-1].append(_cell_text(cell, value) if known and cell is not None else "")
            hovers[-1].append(hover)
            if not known:
                empty.append((batch, name, cell.entry.status if cell is not None else "", hover))
    known_z = [v for row in z for v in row if v is not None]
    seconds = value == "epoch_s"
    heat = go.Heatmap(
        x=x,
        y=y,
        z=z,
        text=texts,
        texttemplate="%{text}",
        **hover_texts(hovers),
        hoverongaps=False,
        colorscale="Cividis",
        reversescale=seconds,
        xgap=2,
        ygap=2,
        colorbar=_log_bar(known_z, "s an epoch" if seconds else "times the<br>baseline"),
    )
    figure = go.Figure([heat] if y else [])
    if empty:
        figure.add_scatter(
            x=[e[0] for e in empty],
            y=[e[1] for e in empty],
            text=[e[2] for e in empty],
            **hover_texts([e[3] for e in empty]),
            mode="text",
            showlegend=False,
        )
    what = "Seconds for an epoch" if seconds else "Speed-up over the baseline"
    return shared.finish(
        figure,
        f"{what} (bright: fast)",
        _heat_alt(table, what, seconds=seconds),
        margin=MARGIN | {"l": 16},
        xaxis=axis("batch size (samples)", **categories(x, showgrid=False)),
        yaxis=categories(y, autorange="reversed", automargin=True, showgrid=False),
    )


def _cell_text(cell: tournament.LeaderboardRow, value: str) -> str:
    if value == "epoch_s":
        return formats.seconds(cell.epoch_s)
    return f"{formats.number(cell.speed_up)}x{shared.comparison_words(cell.against_baseline)}"


def _cell_in_words(cell: tournament.LeaderboardRow | None, where: str) -> str:
    if cell is None:
        return f"{where}<br>not part of the tournament"
    lines = [where]
    if cell.entry.status not in ("done", "running", "waiting") or not math.isfinite(cell.samples_per_s):
        lines.append(f"{cell.entry.status}{': ' + plain(cell.entry.reason) if cell.entry.reason else ''}")
    if math.isfinite(cell.epoch_s):
        spread = shared.spread_words(cell.epoch_low, cell.epoch_high, formats.seconds)
        lines.append(f"{formats.seconds(cell.epoch_s)}{spread} an epoch")
    if math.isfinite(cell.samples_per_s):
        lines.append(formats.number(cell.samples_per_s, "samples/s"))
    if math.isfinite(cell.speed_up):
        lines.append(
            f"{formats.number(cell.speed_up)} times the baseline{shared.comparison_words(cell.against_baseline)}"
        )
    if math.isfinite(cell.gpu_mem_bytes):
        lines.append(f"GPU memory {formats.size(cell.gpu_mem_bytes)}")
    if math.isfinite(cell.gpu_util_pct):
        lines.append(f"GPU-util {cell.gpu_util_pct:.0f}%")
    return "<br>".join(lines)


def _heat_alt(table: tournament.ArticleTable, what: str, *, seconds: bool) -> str:
    cells = [
        (line.name, batch, cell)
        for line in table.lines
        for batch, cell in zip(table.batch_sizes, line.cells, strict=True)
        if cell is not None
    ]
    known = [(name, batch, c) for name, batch, c in cells if math.isfinite(c.samples_per_s)]
    if not known:
        return f"{what}: no figures yet."
    name, batch, cell = max(known, key=lambda k: k[2].samples_per_s)
    figure = formats.seconds(cell.epoch_s) if seconds else f"{formats.number(cell.speed_up)} times"
    return (
        f"{what} for {len(table.lines)} settings at {len(table.batch_sizes)} batch sizes; "
        f"the fastest is {name} at batch {batch:,} with {figure}; {len(cells) - len(known)} cells have no figure."
    )


def _log_bar(logs: Sequence[float], title: str) -> dict[str, Any]:
    """Returns a colour bar over logarithms, labelled with the numbers themselves: 1, 2 and 5 of each decade."""
    bar: dict[str, Any] = {"title": {"text": title}, "thickness": 12, "outlinewidth": 0}
    if not logs:
        return bar
    low, high = min(logs), max(logs)
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [v * 10.0**d for d in decades for v in (1, 2, 5) if low <= math.log10(v * 10.0**d) <= high]
    ticks = ticks if len(ticks) > 1 else sorted({10**low, 10**high})
    return bar | {"tickvals": [math.log10(t) for t in ticks], "ticktext": [f"{t:,.3g}" for t in ticks]}
