"""The article's table in colours: settings by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import entries, leaderboard
from vitprof.charts import style, tournament

Value = Literal["epoch_s", "speed_up"]


def article_heat(table: leaderboard.ArticleTable, value: Value = "epoch_s") -> go.Figure:
    """Returns seconds for an epoch, or the speed-up, by setting (rows) and batch size (columns), on a logarithmic
    scale. The colours are Cividis, for colour vision deficiency too (Nunez, Anderton and Renslow, PLoS ONE 2018).
    """
    seconds = value == "epoch_s"
    x, y = [f"{batch:,}" for batch in table.batch_sizes], [style.plain(line.name) for line in table.lines]
    logs = [[_log(cell, value) for cell in line.cells] for line in table.lines]
    hovers = [
        [_cell_in_words(cell, f"{name}, batch {batch}") for cell, batch in zip(line.cells, x, strict=True)]
        for line, name in zip(table.lines, y, strict=True)
    ]
    heat = go.Heatmap(
        x=x,
        y=y,
        z=logs,
        text=[[_cell_text(cell, value) for cell in line.cells] for line in table.lines],
        texttemplate="%{text}",
        **style.hover_texts(hovers),
        hoverongaps=False,
        colorscale="Cividis",
        reversescale=seconds,
        xgap=2,
        ygap=2,
        colorbar=_log_bar(
            [v for row in logs for v in row if v is not None], "s an epoch" if seconds else "times the<br>baseline"
        ),
    )
    figure = go.Figure([heat] if y else [])
    empty = [(i, j) for i, row in enumerate(logs) for j, log in enumerate(row) if log is None]
    if empty:
        cells = [table.lines[i].cells[j] for i, j in empty]
        figure.add_scatter(
            x=[x[j] for _, j in empty],
            y=[y[i] for i, _ in empty],
            text=["" if cell is None else cell.entry.status for cell in cells],
            **style.hover_texts([hovers[i][j] for i, j in empty]),
            mode="text",
            showlegend=False,
        )
    what = "Seconds for an epoch" if seconds else "Speed-up over the baseline"
    return tournament.finish(
        figure,
        f"{what} (bright: fast)",
        _heat_alt(table, what, value),
        margin=style.MARGIN | {"l": 16},
        xaxis=style.axis("batch size (samples)", **style.categories(x, showgrid=False)),
        yaxis=style.categories(y, autorange="reversed", automargin=True, showgrid=False),
    )


def _log(cell: leaderboard.LeaderboardRow | None, value: Value) -> float | None:
    number: float = math.nan if cell is None or cell.entry.status in entries.OUT_OF_THE_RACE else getattr(cell, value)
    return math.log10(number) if 0 < number < math.inf else None


def _cell_text(cell: leaderboard.LeaderboardRow | None, value: Value) -> str:
    if cell is None or _log(cell, value) is None:
        return ""
    if value == "epoch_s":
        return formats.seconds(cell.epoch_s)
    return f"{formats.number(cell.speed_up)}x{tournament.COMPARISON_WORDS.get(cell.against_baseline, '')}"


def _cell_in_words(cell: leaderboard.LeaderboardRow | None, where: str) -> str:
    if cell is None:
        return f"{where}<br>not part of the tournament"
    lines = [where]
    if cell.entry.status not in ("done", "running", "waiting") or not math.isfinite(cell.samples_per_s):
        lines.append(f"{cell.entry.status}{': ' + style.plain(cell.entry.reason) if cell.entry.reason else ''}")
    spread = tournament.spread_words(cell.epoch_low, cell.epoch_high, formats.seconds)
    against = tournament.COMPARISON_WORDS.get(cell.against_baseline, "")
    figures = {
        f"{formats.seconds(cell.epoch_s)}{spread} an epoch": cell.epoch_s,
        formats.number(cell.samples_per_s, "samples/s"): cell.samples_per_s,
        f"{formats.number(cell.speed_up)} times the baseline{against}": cell.speed_up,
        f"GPU memory {formats.size(cell.gpu_mem_bytes)}": cell.gpu_mem_bytes,
        f"GPU-util {cell.gpu_util_pct:.0f}%": cell.gpu_util_pct,
    }
    return "<br>".join([*lines, *(words for words, figure in figures.items() if math.isfinite(figure))])


def _heat_alt(table: leaderboard.ArticleTable, what: str, value: Value) -> str:
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
    figure = formats.seconds(cell.epoch_s) if value == "epoch_s" else f"{formats.number(cell.speed_up)} times"
    return (
        f"{what} for {len(table.lines)} settings at {len(table.batch_sizes)} batch sizes; "
        f"the fastest is {name} at batch {batch:,} with {figure}; {len(cells) - len(known)} cells have no figure."
    )


def _log_bar(logs: Sequence[float], title: str) -> dict[str, Any]:
    bar: dict[str, Any] = {"title": {"text": title}, "thickness": 12, "outlinewidth": 0}
    if not logs:
        return bar
    low, high = min(logs), max(logs)
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [v * 10.0**d for d in decades for v in (1, 2, 5) if low <= math.log10(v * 10.0**d) <= high]
    ticks = ticks if len(ticks) > 1 else sorted({10**low, 10**high})
    return bar | {"tickvals": [math.log10(t) for t in ticks], "ticktext": [f"{t:,.3g}" for t in ticks]}
