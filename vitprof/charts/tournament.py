"""Charts of a tournament, each with its content in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.faster_while_busy import WHILE_BUSY
from vitprof.analysis.tournament import entries, leaderboard, recommend
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

FRONT_COLOUR = GPU_UTIL
"""Colour of the best and the Pareto front."""
REST_COLOUR = REFERENCE
"""Colour of all others."""
BASELINE = "#808080"
"""Colour of the baseline: its contrast with white paper and with the dark theme's is the same, 4 to
1."""
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
"""The layout of a legend under the chart: it may take several lines on a narrow page, and the title
is above."""
BYTES = {"MiB": 2.0**20, "GiB": 2.0**30}
TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""Units of an axis, each from one of it on."""
BEST_WORDS = {
    "equal": "as fast as the fastest, within 5%",
    "undecided": "can be as fast as the fastest: undecided",
}
COMPARISON_WORDS = {
    "equal": ", as fast within 5%",
    "undecided": ", undecided",
    WHILE_BUSY: ", other programs ran",
}
"""What to add to a speed-up that is neither clearly above nor below 1, or not firm."""


def finish(figure: go.Figure, title: str, alt: str, **layout: Any) -> go.Figure:
    """Returns the figure with its title, its content in words (`alt`) and this layout."""
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
    """Returns an interval in parentheses, with both ends as `words` formats them; "" if it is not
    known.
    """
    if not math.isfinite(low) or not math.isfinite(high):
        return ""
    return f" ({words(low)} to {words(high)})"


def _unit(most: float, units: Mapping[str, float]) -> tuple[str, float]:
    """Returns the largest unit that `most` reaches, else the first; with its size."""
    largest_first = reversed(list(units.items()))
    smallest = next(iter(units.items()))
    return next(((name, size) for name, size in largest_first if most >= size), smallest)


def _speed_whiskers(rows: Sequence[leaderboard.LeaderboardRow], **more: Any) -> dict[str, Any]:
    return whiskers(
        [row.samples_per_s for row in rows],
        [row.low for row in rows],
        [row.high for row in rows],
        **more,
    )


def _name(row: leaderboard.LeaderboardRow) -> str:
    return plain(entries.setting_in_words(row.entry))


def _row_words(row: leaderboard.LeaderboardRow, board: leaderboard.Leaderboard) -> str:
    """Returns a row of the leaderboard as hover text."""
    name = _name(row)
    if row.rank is not None:
        name = f"{row.rank}. {name}"
    speed = formats.number(row.samples_per_s, "samples/s")
    spread = spread_words(row.low, row.high, formats.number)
    measured = formats.count(row.n_runs, "run")
    if row.n_steps:
        measured += f", {formats.steps(row.n_steps)}"
    lines = [name, f"{speed}{spread}, {measured}"]
    if row.key == board.baseline:
        lines.append("the baseline")
    elif math.isfinite(row.speed_up):
        times = f"{formats.number(row.speed_up)}{spread_words(row.speed_up_low, row.speed_up_high, formats.number)}"
        if row.while_busy is not None:
            times = row.while_busy.words.removesuffix("x")
        lines.append(f"{times} times the baseline{COMPARISON_WORDS.get(row.against_baseline, '')}")
    if row.too_few is not None:
        lines.append("too few steady steps to compare it")
    elif row.n_runs == 1:
        lines.append("one run: not known how much runs differ")
    if row.standing in BEST_WORDS:
        lines.append(BEST_WORDS[row.standing])
    if row.entry.status == "cut":
        cut = "cut short"
        if row.entry.reason:
            cut += f": {plain(row.entry.reason)}"
        lines.append(cut)
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
    """Returns samples/s of the ranked settings as bars with intervals, the fastest on top, and the
    baseline as a line.

    Settings as fast as the fastest are hatched, those that can be are dotted, those with another
    page cache are crossed: neither cold nor warm files are compared with the other's fastest. Each
    bar has its speed-up beside it.
    """
    ranked = [row for row in board.rows if row.rank is not None]
    names = [_name(row) for row in ranked]
    speeds = [row.samples_per_s for row in ranked]
    best = board.row(board.best or "")

    def group(row: leaderboard.LeaderboardRow) -> str:
        if best is not None and row.entry.page_cache != best.entry.page_cache:
            return OTHER_CACHE
        if row.standing == "equal":
            return EQUAL
        return row.standing

    figure = go.Figure()
    for bars, (hatched, colour) in BARS.items():
        rows = [row for row in ranked if group(row) == bars]
        if rows:
            figure.add_bar(
                x=[row.samples_per_s for row in rows],
                y=[_name(row) for row in rows],
                orientation="h",
                name=bars,
                marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": hatched}},
                **hover_texts([_row_words(row, board) for row in rows]),
            )
    if ranked:
        hidden = {
            "mode": "markers",
            "marker_opacity": 0,
            "showlegend": False,
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
        # Whiskers with a light rim show on any bar in either theme.
        for colour, thickness in (("#FFFFFF", 4), ("#1B2733", 1.5)):
            whisker = _speed_whiskers(ranked, color=colour, thickness=thickness, width=5)
            figure.add_scatter(x=speeds, y=names, error_x=whisker, **hidden)
        # An axis is drawn only if a trace uses it.
        figure.add_scatter(x=speeds, y=names, yaxis="y2", **hidden)
    base = board.row(board.baseline)
    if base is not None and math.isfinite(base.samples_per_s):
        figure.add_vline(x=base.samples_per_s, line={"color": BASELINE, "dash": "dash", "width": 2})
    alt = "Throughput of each setting: no figures yet."
    if best is not None:
        as_fast = sum(group(row) == EQUAL for row in ranked)
        speed = formats.number(best.samples_per_s, "samples/s")
        settings = formats.count(len(ranked), "setting")
        alt = f"Throughput of {settings}; it is undecided which is the fastest."
        if board.fastest is not None:
            name = entries.setting_in_words(best.entry)
            alt = (
                f"Throughput of {settings}; the fastest is {name} with {speed}; "
                f"{as_fast} as fast within 5%."
            )
    shown = None
    if ranked:
        # To the end of the longest whisker, or of the bar where that is not known.
        ends = [row.high if math.isfinite(row.high) else row.samples_per_s for row in ranked]
        shown = [0, 1.03 * max(ends)]
    # The same range on both sides: texts are beside their bars.
    names_axis = categories(names, automargin=True, range=[max(len(names), 1) - 0.5, -0.5])
    return finish(
        figure,
        "Throughput (dashed: the baseline)",
        alt,
        margin=MARGIN | {"l": 16},
        **LEGEND_BELOW,
        xaxis=axis("throughput (samples/s)", range=shown)
        | {"tickformat": "~s", "tickangle": 0, "nticks": 6},
        yaxis=names_axis,
        # Texts beside bars have a column of their own: on a narrow screen they would be cut at the
        # bar's end.
        yaxis2=names_axis
        | {"overlaying": "y", "side": "right", "showgrid": False, "tickvals": names}
        | {"ticktext": [_bar_text(row, board) for row in ranked]},
    )


def _bar_text(row: leaderboard.LeaderboardRow, board: leaderboard.Leaderboard) -> str:
    if row.key == board.baseline:
        return "baseline"
    return speed_up_in_words(row)


def speed_up_in_words(row: leaderboard.LeaderboardRow) -> str:
    """Returns the speed-up over the baseline with what it rests on, without an interval; "" without
    one."""
    times = leaderboard.speed_up_words(row)
    return f"{times}{COMPARISON_WORDS.get(row.against_baseline, '')}" if times else ""


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
    """Returns throughput against a cost of the settings; the front is a staircase that no setting
    is above.
    """
    cost = {row.key: recommend.cost_of(row, against) for row in board.rows}
    known = [row for row in board.rows if row.rank is not None and math.isfinite(cost[row.key])]
    front = set(recommend.pareto(board, against))
    most = max((cost[row.key] for row in known), default=0.0)
    if against == "prepare_s":
        unit, size = _unit(most, TIMES)
        words = {key: formats.seconds(seconds) for key, seconds in cost.items()}
    else:
        unit, size = _unit(most, BYTES)
        words = {key: formats.size(n_bytes) for key, n_bytes in cost.items()}
    on = sorted((r for r in known if r.key in front), key=lambda r: (cost[r.key], r.samples_per_s))
    off = [row for row in known if row.key not in front]
    figure = go.Figure()
    for name, rows, colour in (
        ("on the front", on, FRONT_COLOUR),
        ("another is better in both", off, REST_COLOUR),
    ):
        if not rows:
            continue
        symbols = ["diamond" if row.key == board.baseline else "circle" for row in rows]
        labels = None
        # Names of more would cover each other.
        if rows is on or len(known) <= ALL_NAMED:
            labels = [f"{plain(r.entry.strategy)}, batch {r.entry.batch_size:,}" for r in rows]
        # Above and below in turn, because neighbours on the front are close together; towards the
        # middle.
        places = []
        for i, row in enumerate(rows):
            side = "right" if cost[row.key] <= most / 2 else "left"
            places.append(f"top {side}" if i % 2 == 0 else f"bottom {side}")
        figure.add_scatter(
            x=[cost[row.key] / size for row in rows],
            y=[row.samples_per_s for row in rows],
            name=name,
            mode="lines+markers+text" if rows is on else "markers+text",
            line={"shape": "hv", "color": FRONT_COLOUR, "width": 1.5, "dash": "dot"},
            marker={"color": colour, "size": 11, "symbol": symbols},
            error_y=_speed_whiskers(rows, color=colour, thickness=1),
            text=labels,
            textposition=places,
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
LEAST_EPOCHS = 10
"""The chart shows at least so many."""
PARTS = 20
"""Parts of a line between points that can be pointed at."""


def break_even_chart(board: leaderboard.Leaderboard) -> go.Figure:
    """Returns total time, preparation included, by number of epochs.

    A mark shows where a setting passes the baseline. It has the baseline and the fastest settings
    whose preparation time is known, at most `MOST_LINES`.
    """
    base = board.row(board.baseline)
    figure = go.Figure()
    unit = "s"
    crossing_of = {b.key: b for b in recommend.break_even(board) if math.isfinite(b.extra_s)}
    rows = [row for row in board.rows if row.key in crossing_of][:MOST_LINES]
    alt = "Total time by epochs: no figures yet."
    if base is not None and rows:
        at = {row.key: crossing_of[row.key].epochs for row in rows}
        crossed = [row for row in rows if 0 < at[row.key] <= MOST_EPOCHS]
        # The last crossing is at two thirds of the axis.
        last = max((at[row.key] for row in crossed), default=0.0)
        epochs = max(LEAST_EPOCHS, math.ceil(1.5 * last))
        n = sorted({round(epochs * part / PARTS) for part in range(PARTS + 1)})
        totals = {
            row.key: [recommend.setup_s(row) + k * row.epoch_s for k in n] for row in (base, *rows)
        }
        unit, size = _unit(max(map(max, totals.values())), TIMES)
        for place, row in enumerate((base, *rows)):
            name = _name(row)
            if place == 0:
                name += " (baseline)"
                drawn = {"color": BASELINE, "dash": "dash", "width": 2}
            else:
                # settings that are as fast have one line: the first is seen on both sides of the next
                drawn = run_line(place - 1, width=5 if place % 2 else 2)
            hovers = [
                f"{name}<br>{formats.seconds(s)} for {k:,} epochs"
                for k, s in zip(n, totals[row.key], strict=True)
            ]
            figure.add_scatter(
                x=n,
                y=[s / size for s in totals[row.key]],
                name=name,
                mode="lines",
                line=drawn,
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
