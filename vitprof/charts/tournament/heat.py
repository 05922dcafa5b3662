"""The article's table in colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import OUT_OF_THE_RACE, ArticleCell, ArticleTable
from vitprof.charts.style import MARGIN, axis, plain
from vitprof.charts.tournament.shared import comparison_words, finish, spread_words


def article_heat(table: ArticleTable, value: Literal["epoch_s", "speed_up"] = "epoch_s") -> go.Figure:
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
            known = math.isfinite(number) and number > 0 and cell is not None and cell.status not in OUT_OF_THE_RACE
            hover = _cell_in_words(cell, f"{name}, batch {batch}")
            z[-1].append(math.log10(number) if known else None)
            texts[-1].append(_cell_text(cell, value) if known and cell is not None else "")
            hovers[-1].append(hover)
            if not known:
                empty.append((batch, name, cell.status if cell is not None else "", hover))
    known_z = [v for row in z for v in row if v is not None]
    seconds = value == "epoch_s"
    heat = go.Heatmap(
        x=x,
        y=y,
        z=z,
        text=texts,
        texttemplate="%{text}",
        hovertext=hovers,
        hovertemplate="%{hovertext}<extra></extra>",
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
            hovertext=[e[3] for e in empty],
            mode="text",
            hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False,
        )
    what = "Seconds for an epoch" if seconds else "Speed-up over the baseline"
    return finish(
        figure,
        f"{what} (bright: fast)",
        _heat_alt(table, what, seconds=seconds),
        margin=MARGIN | {"l": 16},
        xaxis=axis("batch size (samples)", type="category", showgrid=False, fixedrange=True)
        | {"categoryorder": "array", "categoryarray": x},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False, "fixedrange": True}
        | {"categoryorder": "array", "categoryarray": y},
    )


def _cell_text(cell: ArticleCell, value: str) -> str:
    if value == "epoch_s":
        return formats.seconds(cell.epoch_s)
    return f"{formats.number(cell.speed_up)}x{comparison_words(cell.against_baseline)}"


def _cell_in_words(cell: ArticleCell | None, where: str) -> str:
    if cell is None:
        return f"{where}<br>not part of the tournament"
    said = [where]
    if cell.status not in ("done", "running", "waiting") or not math.isfinite(cell.samples_per_s):
        said.append(f"{cell.status}{': ' + plain(cell.reason) if cell.reason else ''}")
    if math.isfinite(cell.epoch_s):
        said.append(f"{formats.seconds(cell.epoch_s)}{spread_words(cell.low, cell.high, formats.seconds)} an epoch")
    if math.isfinite(cell.samples_per_s):
        said.append(formats.number(cell.samples_per_s, "samples/s"))
    if math.isfinite(cell.speed_up):
        said.append(f"{formats.number(cell.speed_up)} times the baseline{comparison_words(cell.against_baseline)}")
    if math.isfinite(cell.gpu_mem_bytes):
        said.append(f"GPU memory {formats.size(cell.gpu_mem_bytes)}")
    if math.isfinite(cell.gpu_util_pct):
        said.append(f"GPU-util {cell.gpu_util_pct:.0f}%")
    return "<br>".join(said)


def _heat_alt(table: ArticleTable, what: str, *, seconds: bool) -> str:
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
