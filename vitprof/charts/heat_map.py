"""The article's table in colours: settings by batch size."""

import math
from typing import Literal

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import entries, leaderboard
from vitprof.charts import style, tournament

Value = Literal["epoch_s", "speed_up"]


def article_heat(table: leaderboard.ArticleTable, value: Value = "epoch_s") -> go.Figure:
    """Returns seconds for an epoch, or the speed-up, by setting (rows) and batch size (columns), on a logarithmic
    scale. The colours are Cividis, for colour vision deficiency too (Nunez, Anderton and Renslow, PLoS ONE 2018).
    """
    x = [f"{batch:,}" for batch in table.batch_sizes]
    y = [style.plain(line.name) for line in table.lines]
    logs = [[_log(cell, value) for cell in line.cells] for line in table.lines]
    hovers = [
        [
            _cell_in_words(cell, f"{name}, batch {batch}")
            for cell, batch in zip(line.cells, x, strict=True)
        ]
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
        reversescale=value == "epoch_s",
        xgap=2,
        ygap=2,
        showscale=False,  # each cell has its number
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
    what = "Seconds for an epoch" if value == "epoch_s" else "Speed-up over the baseline"
    return tournament.finish(
        figure,
        f"{what} (bright: fast)",
        _heat_alt(table, what, value),
        margin=style.MARGIN | {"l": 16},
        xaxis=style.axis("batch size (samples)", **style.categories(x, showgrid=False)),
        yaxis=style.categories(y, autorange="reversed", automargin=True, showgrid=False),
    )


def _log(cell: leaderboard.LeaderboardRow | None, value: Value) -> float | None:
    number: float = (
        math.nan
        if cell is None or cell.entry.status in entries.OUT_OF_THE_RACE
        else getattr(cell, value)
    )
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
    if cell.entry.status not in ("done", "running", "waiting") or not math.isfinite(
        cell.samples_per_s
    ):
        lines.append(
            f"{cell.entry.status}{': ' + style.plain(cell.entry.reason) if cell.entry.reason else ''}"
        )
    spread = tournament.spread_words(cell.epoch_low, cell.epoch_high, formats.seconds)
    against = tournament.COMPARISON_WORDS.get(cell.against_baseline, "")
    figures = {
        f"{formats.seconds(cell.epoch_s)}{spread} an epoch": cell.epoch_s,
        formats.number(cell.samples_per_s, "samples/s"): cell.samples_per_s,
        f"{formats.number(cell.speed_up)} times the baseline{against}": cell.speed_up,
    }
    return "<br>".join(
        [*lines, *(words for words, figure in figures.items() if math.isfinite(figure))]
    )


def _heat_alt(table: leaderboard.ArticleTable, what: str, value: Value) -> str:
    cells = [(line.name, cell) for line in table.lines for cell in line.cells if cell is not None]
    if not (known := [(name, cell) for name, cell in cells if math.isfinite(cell.samples_per_s)]):
        return f"{what}: no figures yet."
    name, cell = max(known, key=lambda k: k[1].samples_per_s)
    figure = (
        formats.seconds(cell.epoch_s)
        if value == "epoch_s"
        else f"{formats.number(cell.speed_up)} times"
    )
    return f"{what} by setting and batch size; the fastest is {name} at batch {cell.entry.batch_size:,} with {figure}."
