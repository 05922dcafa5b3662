"""What the charts of a tournament share: units of axes, titles, and a setting's figures in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import Leaderboard, LeaderboardRow, setting_in_words
from vitprof.charts.style import GPU_UTIL, MARGIN, REFERENCE, plain, whiskers

FRONT_COLOUR, REST_COLOUR = GPU_UTIL, REFERENCE
"""Colours of the best and the Pareto front, and of all others."""
BASELINE = "#808080"
"""Colour of the baseline: its contrast with white paper and with the dark theme's is the same, 4 to 1."""
LEGEND_BELOW = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"}
"""A legend under the chart: it may take several lines on a narrow page, and the title is above."""


@dataclass(frozen=True)
class Unit:
    """The unit of an axis: its name, and its size in bytes or seconds."""

    name: str
    size: float


def unit_for(most: float, units: Sequence[Unit]) -> Unit:
    """Returns the largest unit in which `most` is at least 1, else the first."""
    return next((unit for unit in reversed(units) if most >= unit.size), units[0])


BYTES = (Unit("MiB", 2.0**20), Unit("GiB", 2.0**30))
TIMES = (Unit("s", 1.0), Unit("min", 60.0), Unit("h", 3600.0))


def time_unit(most_s: float) -> Unit:
    """Returns the unit for times up to `most_s` seconds: minutes from 2 min on, hours from 2 h on."""
    return unit_for(most_s / 2, TIMES)


def finish(figure: go.Figure, title: str, alt: str, **layout: Any) -> go.Figure:
    """Returns the figure with its title, its content in words (`alt`) and this layout."""
    heading = {"text": title, "font": {"size": 15}, "x": 0, "xref": "container", "y": 1, "yref": "container"}
    heading |= {"xanchor": "left", "yanchor": "top", "pad": {"t": 6, "l": 4}, "automargin": False}
    return figure.update_layout(title=heading, meta={"alt": alt}, **({"margin": MARGIN} | layout))


def speed_whiskers(rows: Sequence[LeaderboardRow], **more: Any) -> dict[str, Any]:
    """Returns the error bars of the rows' throughputs."""
    return whiskers([r.samples_per_s for r in rows], [r.low for r in rows], [r.high for r in rows], **more)


def spread_words(low: float, high: float, words: Any) -> str:
    """Returns an interval in parentheses, with both ends as `words` formats them; "" if it is not known."""
    return f" ({words(low)} to {words(high)})" if math.isfinite(low) and math.isfinite(high) else ""


BEST_WORDS = {"equal": "as fast as the fastest, within 5%", "undecided": "can be as fast as the fastest: undecided"}
COMPARISON_WORDS = {"equal": ", as fast within 5%", "undecided": ", undecided"}


def comparison_words(against: str) -> str:
    """Returns what to add to a speed-up that is neither clearly above nor below 1; else ""."""
    return COMPARISON_WORDS.get(against, "")


def row_words(row: LeaderboardRow, board: Leaderboard) -> str:
    """Returns a row of the leaderboard as hover text."""
    steps = f", {row.n_steps:,} steps" if row.n_steps else ""
    speed = formats.number(row.samples_per_s, "samples/s")
    lines = [
        ("" if row.rank is None else f"{row.rank}. ") + plain(setting_in_words(row.entry)),
        f"{speed}{spread_words(row.low, row.high, formats.number)}, {formats.count(row.n_runs, 'run')}{steps}",
    ]
    if row.key == board.baseline:
        lines.append("the baseline")
    elif math.isfinite(row.speed_up):
        times = f"{formats.number(row.speed_up)}{spread_words(row.speed_up_low, row.speed_up_high, formats.number)}"
        lines.append(f"{times} times the baseline{comparison_words(row.against_baseline)}")
    if row.too_few is not None:
        lines.append("too few steady steps to compare it")
    elif row.n_runs == 1:
        lines.append("one run: not known how much runs differ")
    if row.standing in BEST_WORDS:
        lines.append(BEST_WORDS[row.standing])
    if row.entry.status == "cut":
        lines.append(f"cut short{': ' + plain(row.entry.reason) if row.entry.reason else ''}")
    return "<br>".join(lines)
