"""The article's table in colours: settings by batch size."""

import math
from typing import Literal

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import entries, leaderboard
from vitprof.charts import style, tournament

Value = Literal["epoch_s", "speed_up"]


def article_heat(table: leaderboard.ArticleTable, value: Value = "epoch_s") -> go.Figure:
    """Returns seconds for an epoch, or the speed-up over the baseline, by setting (rows) and batch
    size (columns).

    Bright is fast, on a logarithmic scale. A cell without a figure is empty and says why. The scale
    is Cividis, made for people with and without colour vision deficiency (Nunez, Anderton and
    Renslow, PLoS ONE 2018).
    """
    x = [f"{batch:,}" for batch in table.batch_sizes]
    y = [style.plain(line.name) for line in table.lines]
    logs = [[_log(cell, value) for cell in line.cells] for line in table.lines]
    hovers = []
    for line, name in zip(table.lines, y, strict=True):
        wheres = [f"{name}, batch {batch}" for batch in x]
        hovers.append([_cell_in_words(*of) for of in zip(line.cells, wheres, strict=True)])
    # Each cell has its number, so no scale of colours is shown.
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
        showscale=False,
    )
    figure = go.Figure([heat] if y else [])
    empty = [(row, column) for row in range(len(y)) for column in range(len(x))]
    empty = [(row, column) for row, column in empty if logs[row][column] is None]
    if empty:
        cells = [table.lines[row].cells[column] for row, column in empty]
        # Plotly draws nothing for an empty cell, neither its text nor what is under the pointer.
        figure.add_scatter(
            x=[x[column] for _, column in empty],
            y=[y[row] for row, _ in empty],
            text=["" if cell is None else cell.entry.status for cell in cells],
            **style.hover_texts([hovers[row][column] for row, column in empty]),
            mode="text",
            showlegend=False,
        )
    what = "Speed-up over the baseline"
    if value == "epoch_s":
        what = "Seconds for an epoch"
    return tournament.finish(
        figure,
        f"{what} (bright: fast)",
        _heat_alt(table, what, value),
        margin=style.MARGIN | {"l": 16},
        xaxis=style.axis("batch size (samples)", **style.categories(x, showgrid=False)),
        yaxis=style.categories(y, autorange="reversed", automargin=True, showgrid=False),
    )


def _log(cell: leaderboard.LeaderboardRow | None, value: Value) -> float | None:
    """Returns the decimal logarithm of a cell's figure; None for a cell that stays empty."""
    if cell is None or cell.entry.status in entries.OUT_OF_THE_RACE:
        return None
    number: float = getattr(cell, value)
    if not 0 < number < math.inf:
        return None
    return math.log10(number)


def _cell_text(cell: leaderboard.LeaderboardRow | None, value: Value) -> str:
    if cell is None or _log(cell, value) is None:
        return ""
    if value == "epoch_s":
        return formats.seconds(cell.epoch_s)
    return tournament.speed_up_in_words(cell)


def _cell_in_words(cell: leaderboard.LeaderboardRow | None, where: str) -> str:
    if cell is None:
        return f"{where}<br>not part of the tournament"
    lines = [where]
    usual = cell.entry.status in ("done", "running", "waiting")
    if not usual or not math.isfinite(cell.samples_per_s):
        status: str = cell.entry.status
        if cell.entry.reason:
            status += f": {style.plain(cell.entry.reason)}"
        lines.append(status)
    spread = tournament.spread_words(cell.epoch_low, cell.epoch_high, formats.seconds)
    against = tournament.COMPARISON_WORDS.get(cell.against_baseline, "")
    times = formats.number(cell.speed_up)
    if cell.while_busy is not None:
        times = cell.while_busy.words.removesuffix("x")
    figures = {
        f"{formats.seconds(cell.epoch_s)}{spread} an epoch": cell.epoch_s,
        formats.number(cell.samples_per_s, "samples/s"): cell.samples_per_s,
        f"{times} times the baseline{against}": cell.speed_up,
    }
    lines += [words for words, figure in figures.items() if math.isfinite(figure)]
    return "<br>".join(lines)


def _heat_alt(table: leaderboard.ArticleTable, what: str, value: Value) -> str:
    """Returns the chart in words, for screen readers."""
    cells = [(line.name, cell) for line in table.lines for cell in line.cells]
    known = [
        (name, cell)
        for name, cell in cells
        if cell is not None and math.isfinite(cell.samples_per_s)
    ]
    if not known:
        return f"{what}: no figures yet."
    name, cell = max(known, key=lambda k: k[1].samples_per_s)
    figure = f"{formats.number(cell.speed_up)} times"
    if value == "epoch_s":
        figure = formats.seconds(cell.epoch_s)
    return f"{what} by setting and batch size; the fastest is {name} at batch {cell.entry.batch_size:,} with {figure}."
