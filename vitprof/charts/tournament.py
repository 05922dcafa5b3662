"""Charts of a tournament and of a search for one strategy's best setting. Each has its content in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import entries, leaderboard, recommend, tuning
from vitprof.charts import style
from vitprof.charts.comparison import run_line
from vitprof.charts.style import (
    GPU_UTIL,
    MARGIN,
    REFERENCE,
    axis,
    categories,
    hover_texts,
    plain,
    whiskers,
)

FRONT_COLOUR, REST_COLOUR = GPU_UTIL, REFERENCE
"""Colours of the best and the Pareto front, and of all others."""
BASELINE = "#808080"
"""Colour of the baseline: its contrast with white paper and with the dark theme's is the same, 4 to 1."""
LEGEND_BELOW: dict[str, Any] = {
    "legend": {
        "orientation": "h",
        "xref": "container",
        "yref": "container",
        "x": 0,
        "y": 0,
        "yanchor": "bottom",
    },
    "showlegend": True,
}
"""The layout of a legend under the chart: it may take several lines on a narrow page, and the title is above."""
BYTES = {"MiB": 2.0**20, "GiB": 2.0**30}
TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""Units of an axis, each from one of it on."""
BEST_WORDS = {
    "equal": "as fast as the fastest, within 5%",
    "undecided": "can be as fast as the fastest: undecided",
}
COMPARISON_WORDS = {"equal": ", as fast within 5%", "undecided": ", undecided"}
"""What to add to a speed-up that is neither clearly above nor below 1."""


def finish(figure: go.Figure, title: str, alt: str, **layout: Any) -> go.Figure:
    heading = {
        "text": title,
        "font": {"size": 15},
        "x": 0,
        "xref": "container",
        "y": 1,
        "yref": "container",
    }
    heading |= {"xanchor": "left", "yanchor": "top", "pad": {"t": 6, "l": 4}, "automargin": False}
    return figure.update_layout(title=heading, meta={"alt": alt}, **({"margin": MARGIN} | layout))


def spread_words(low: float, high: float, words: Any) -> str:
    return f" ({words(low)} to {words(high)})" if math.isfinite(low) and math.isfinite(high) else ""


def _unit(most: float, units: Mapping[str, float]) -> tuple[str, float]:
    return next(
        (unit for unit in reversed(list(units.items())) if most >= unit[1]),
        next(iter(units.items())),
    )


def _speed_whiskers(rows: Sequence[leaderboard.LeaderboardRow], **more: Any) -> dict[str, Any]:
    return whiskers(*zip(*(row.score for row in rows), strict=True), **more)


def _name(row: leaderboard.LeaderboardRow) -> str:
    return plain(entries.setting_in_words(row.entry))


def _row_words(row: leaderboard.LeaderboardRow, board: leaderboard.Leaderboard) -> str:
    steps = f", {row.n_steps:,} steps" if row.n_steps else ""
    lines = [
        ("" if row.rank is None else f"{row.rank}. ") + _name(row),
        f"{formats.number(row.score.value, 'samples/s')}{spread_words(*row.score[1:], formats.number)}, "
        f"{formats.count(row.n_runs, 'run')}{steps}",
    ]
    if row.key == board.baseline:
        lines.append("the baseline")
    elif math.isfinite(row.speed_up):
        times = f"{formats.number(row.speed_up)}{spread_words(row.speed_up_low, row.speed_up_high, formats.number)}"
        lines.append(f"{times} times the baseline{COMPARISON_WORDS.get(row.against_baseline, '')}")
    if row.too_few is not None:
        lines.append("too few steady steps to compare it")
    elif row.n_runs == 1:
        lines.append("one run: not known how much runs differ")
    if row.standing in BEST_WORDS:
        lines.append(BEST_WORDS[row.standing])
    if row.entry.status == "cut":
        lines.append(f"cut short{': ' + plain(row.entry.reason) if row.entry.reason else ''}")
    return "<br>".join(lines)


EQUAL = "as fast, within 5%"
OTHER_CACHE = "another page cache"
BARS = {
    "fastest": ("", FRONT_COLOUR),
    EQUAL: ("/", FRONT_COLOUR),
    "undecided": (".", REST_COLOUR),
    "slower": ("", REST_COLOUR),
    OTHER_CACHE: ("x", REST_COLOUR),
}
"""Name of bars in the legend -> their pattern and colour."""


def throughput_bars(board: leaderboard.Leaderboard) -> go.Figure:
    """Returns samples/s of the ranked settings as bars with intervals and speed-ups, the fastest on top, the baseline
    as a line. Equal to the fastest: hatched; possibly equal: dotted; another page cache: crossed.
    """
    ranked = [row for row in board.rows if row.rank is not None]
    names = [_name(row) for row in ranked]
    speeds = [row.score.value for row in ranked]
    best = board.row(board.best or "")

    def group(row: leaderboard.LeaderboardRow) -> str:
        if best is not None and row.entry.page_cache != best.entry.page_cache:
            return OTHER_CACHE
        return EQUAL if row.standing == "equal" else row.standing

    figure = go.Figure()
    for bars, (hatched, colour) in BARS.items():
        if rows := [row for row in ranked if group(row) == bars]:
            figure.add_bar(
                x=[row.score.value for row in rows],
                y=[_name(row) for row in rows],
                orientation="h",
                name=bars,
                marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": hatched}},
                **hover_texts([_row_words(row, board) for row in rows]),
            )
    if ranked:  # whiskers with a light rim show on any bar in either theme; an axis is drawn if a trace uses it
        hidden = {
            "mode": "markers",
            "marker_opacity": 0,
            "showlegend": False,
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
        for colour, thickness in (("#FFFFFF", 4), ("#1B2733", 1.5)):
            whisker = _speed_whiskers(ranked, color=colour, thickness=thickness, width=5)
            figure.add_scatter(x=speeds, y=names, error_x=whisker, **hidden)
        figure.add_scatter(x=speeds, y=names, yaxis="y2", **hidden)
    base = board.row(board.baseline)
    if base is not None and math.isfinite(base.score.value):
        figure.add_vline(x=base.score.value, line={"color": BASELINE, "dash": "dash", "width": 2})
    alt = "Throughput of each setting: no figures yet."
    if best is not None:
        alt = (
            f"Throughput of {len(ranked)} settings; the fastest is {entries.setting_in_words(best.entry)} with "
            f"{formats.number(best.score.value, 'samples/s')}; {sum(group(row) == EQUAL for row in ranked)} as fast "
            "within 5%."
        )
    ends = [row.score.high if math.isfinite(row.score.high) else row.score.value for row in ranked]
    # the same range on both sides: texts are beside their bars
    names_axis = categories(names, automargin=True, range=[max(len(names), 1) - 0.5, -0.5])
    return finish(
        figure,
        "Throughput (dashed: the baseline)",
        alt,
        margin=MARGIN | {"l": 16},
        **LEGEND_BELOW,
        xaxis=axis("throughput (samples/s)", range=[0, 1.03 * max(ends)] if ranked else None)
        | {"tickformat": "~s", "tickangle": 0, "nticks": 6},
        yaxis=names_axis,
        # texts beside bars have a column of their own: on a narrow screen they would be cut at the end of the bar
        yaxis2=names_axis
        | {"overlaying": "y", "side": "right", "showgrid": False, "tickvals": names}
        | {"ticktext": [_bar_text(row, board) for row in ranked]},
    )


def _bar_text(row: leaderboard.LeaderboardRow, board: leaderboard.Leaderboard) -> str:
    if row.key == board.baseline:
        return "baseline"
    known = math.isfinite(row.speed_up)
    return (
        f"{formats.number(row.speed_up)}x{COMPARISON_WORDS.get(row.against_baseline, '')}"
        if known
        else ""
    )


COSTS: dict[recommend.Cost, str] = {
    "rss_bytes": "memory of the processes",
    "ram_bytes": "RAM disk and kept samples",
    "disk_bytes": "disk for the storage",
    "prepare_s": "preparation time",
}
"""Cost of a setting -> its name on axes and in choices."""


ALL_NAMED = 6
"""Settings in a chart of costs up to which each has its name beside its point."""


def pareto_chart(board: leaderboard.Leaderboard, against: recommend.Cost) -> go.Figure:
    cost = {row.key: recommend.cost_of(row, against) for row in board.rows}
    known = [row for row in board.rows if row.rank is not None and math.isfinite(cost[row.key])]
    front = set(recommend.pareto(board, against))
    most = max((cost[row.key] for row in known), default=0.0)
    unit, size = _unit(most, TIMES if against == "prepare_s" else BYTES)
    words = {
        key: formats.seconds(c) if against == "prepare_s" else formats.size(c)
        for key, c in cost.items()
    }
    on = sorted((r for r in known if r.key in front), key=lambda r: (cost[r.key], r.score.value))
    off = [row for row in known if row.key not in front]
    figure = go.Figure()
    for name, rows, colour in (
        ("on the front", on, FRONT_COLOUR),
        ("another is better in both", off, REST_COLOUR),
    ):
        if not rows:
            continue
        named = rows is on or len(known) <= ALL_NAMED  # names of more would cover each other
        symbols = ["diamond" if row.key == board.baseline else "circle" for row in rows]
        figure.add_scatter(
            x=[cost[row.key] / size for row in rows],
            y=[row.score.value for row in rows],
            name=name,
            mode="lines+markers+text" if rows is on else "markers+text",
            line={"shape": "hv", "color": FRONT_COLOUR, "width": 1.5, "dash": "dot"},
            marker={"color": colour, "size": 11, "symbol": symbols},
            error_y=_speed_whiskers(rows, color=colour, thickness=1),
            text=[f"{plain(r.entry.strategy)}, batch {r.entry.batch_size:,}" for r in rows]
            if named
            else None,
            # Above and below in turn, because neighbours on the front are close together.
            textposition=[
                f"{('top', 'bottom')[i % 2]} {'right' if cost[row.key] <= most / 2 else 'left'}"
                for i, row in enumerate(rows)
            ],
            cliponaxis=False,
            **hover_texts(
                [
                    f"{_row_words(r, board)}<br>{COSTS[against]}: {words[r.key]}<br>{name}"
                    for r in rows
                ]
            ),
        )
    names = "; ".join(f"{entries.setting_in_words(r.entry)} ({words[r.key]})" for r in on)
    return finish(
        figure,
        f"Throughput against {COSTS[against]}",
        f"Throughput against {COSTS[against]} of {len(known)} settings. On the Pareto front: {names or 'none yet'}.",
        **LEGEND_BELOW,
        hovermode="closest",
        xaxis=axis(f"{COSTS[against]} ({unit})", rangemode="tozero"),
        yaxis=axis("throughput (samples/s)", rangemode="tozero"),
    )


MOST_LINES = 7
"""Settings besides the baseline at most: as many as there are colours that can be told apart."""
MOST_EPOCHS = 1000
"""A later crossing is given in words only."""


def break_even_chart(board: leaderboard.Leaderboard) -> go.Figure:
    """Returns total time by epochs of the baseline and the `MOST_LINES` fastest; marks are break-even."""
    base = board.row(board.baseline)
    figure = go.Figure()
    unit = "s"
    crossing_of = {b.key: b for b in recommend.break_even(board) if math.isfinite(b.extra_s)}
    rows = [row for row in board.rows if row.key in crossing_of][:MOST_LINES]
    alt = "Total time by epochs: no figures yet."
    if base is not None and rows:
        at = {row.key: crossing_of[row.key].epochs for row in rows}
        crossed = [row for row in rows if 0 < at[row.key] <= MOST_EPOCHS]
        epochs = max(10, math.ceil(1.5 * max((at[row.key] for row in crossed), default=0.0)))
        n = sorted({round(epochs * share / 20) for share in range(21)})
        totals = {
            row.key: [recommend.setup_s(row) + k * row.epoch_s for k in n] for row in (base, *rows)
        }
        unit, size = _unit(max(map(max, totals.values())), TIMES)
        for place, row in enumerate((base, *rows)):
            name = f"{_name(row)}{'' if place else ' (baseline)'}"
            hovers = [
                f"{name}<br>{formats.seconds(s)} for {k:,} epochs"
                for k, s in zip(n, totals[row.key], strict=True)
            ]
            figure.add_scatter(
                x=n,
                y=[s / size for s in totals[row.key]],
                name=name,
                mode="lines",
                line=run_line(place - 1, width=2)
                if place
                else {"color": BASELINE, "dash": "dash", "width": 2},
                **hover_texts(hovers),
            )
        colours = [run_line(rows.index(row))["color"] for row in crossed]
        figure.add_scatter(
            x=[at[row.key] for row in crossed],
            y=[(recommend.setup_s(base) + at[row.key] * base.epoch_s) / size for row in crossed],
            name="break-even",
            mode="markers",
            marker={
                "symbol": "x",
                "size": 11,
                "color": colours,
                "line": {"width": 1, "color": BASELINE},
            },
            **hover_texts([f"{_name(row)}<br>{crossing_of[row.key].sentence}" for row in crossed]),
        )
        text = "; ".join(
            f"{entries.setting_in_words(r.entry)} {crossing_of[r.key].sentence}" for r in rows
        )
        alt = f"Total time by number of epochs, against the baseline: {text}."
    return finish(
        figure,
        "Total time by epochs, with preparation",
        alt,
        **LEGEND_BELOW,
        hovermode="closest",
        xaxis=axis("epochs trained", rangemode="tozero"),
        yaxis=axis(f"total time ({unit})", rangemode="tozero"),
    )


def optimization_history(trials: Sequence[tuning.Tried], names: Sequence[str]) -> go.Figure:
    figure = go.Figure()
    for name, colour, symbol, of_check in (
        ("search", REST_COLOUR, "circle", False),
        ("check of the winner", FRONT_COLOUR, "diamond", True),
    ):
        at = [
            i
            for i, t in enumerate(trials)
            if (t.rung == 0) == of_check and math.isfinite(t.samples_per_s)
        ]
        if at:
            speeds = [trials[i].samples_per_s for i in at]
            hovers = [
                f"trial {i + 1}: {plain(names[i])}<br>{formats.number(speed, 'samples/s')}"
                for i, speed in zip(at, speeds, strict=True)
            ]
            marker = {"color": colour, "size": 9, "symbol": symbol}
            figure.add_scatter(
                x=[i + 1 for i in at],
                y=speeds,
                name=name,
                mode="markers",
                marker=marker,
                **hover_texts(hovers),
            )
    so_far = np.fmax.accumulate([t.samples_per_s if t.rung else math.nan for t in trials])
    figure.add_scatter(
        x=list(range(1, len(trials) + 1)),
        y=so_far,
        name="best of the search so far",
        mode="lines",
        line={"shape": "hv", "color": FRONT_COLOUR, "width": 1.5},
        hoverinfo="skip",
    )
    reached = (
        f"the best reaches {formats.number(np.fmax.reduce(so_far, initial=math.nan), 'samples/s')}"
    )
    return finish(
        figure,
        "Optimization history",
        f"Throughput of {len(trials)} trials in the order in which they ran; {reached}.",
        **LEGEND_BELOW,
        xaxis=axis("trial", tickformat="d", rangemode="tozero"),
        yaxis=axis("throughput (samples/s)", rangemode="tozero"),
    )


def importance_bars(importances: tuning.Importances) -> go.Figure:
    shares = importances.shares
    texts = [f"{share:.0%}" for share in shares.values()]
    words = [f"{name} {text}" for name, text in zip(shares, texts, strict=True)]
    bars = style.labelled_bars(list(shares), list(shares.values()), texts, FRONT_COLOUR, words)
    return finish(
        go.Figure(bars),
        "Hyperparameter importances",
        f"Share of the explained differences in throughput: {', '.join(words)}.",
        margin=MARGIN | {"l": 16},
        showlegend=False,
        xaxis=axis("share of the explained differences", range=[0, 1.12], tickformat=".0%"),
        yaxis=categories(autorange="reversed", automargin=True),
    )
