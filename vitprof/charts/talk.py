"""A picture of one run or two for a talk: what the device did, in three colours, in words that can
be read from the last row.

Of each run there is a stretch of training, and beneath it the whole run as a strip. Both runs have
the same time axes. All sizes are in pixels, so a picture is drawn for a `Size`.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from vitprof import formats
from vitprof.analysis.arrays import Floats
from vitprof.analysis.timing.activity import ACTIVITIES, Stretch, Strip
from vitprof.charts import style


@dataclass(frozen=True)
class Lane:
    """A run in the picture."""

    name: str
    """Which run it is: "now", "with memory"."""
    says: str
    """Its figure: "waits for data 70%"; "" where there is none."""
    stretch: Stretch | None
    """None where the run has no stretch of this length."""
    strip: Strip


@dataclass(frozen=True)
class Size:
    """How large a picture is."""

    width: int
    height: int
    """Of a picture of two runs."""
    text: int
    """Height of the letters of a lane's name; of the title more, of an axis less."""

    @property
    def small(self) -> float:
        return round(0.8 * self.text)

    @property
    def title(self) -> float:
        return round(1.35 * self.text)


WIDE = Size(1280, 720, 27)
"""A slide, 16 to 9."""
NARROW = Size(640, 860, 27)
"""For a phone, which shows it at half the size."""
IN_REPORT = Size(980, 470, 17)
IN_NARROW_REPORT = Size(340, 520, 14)
FONT = "Arial, Helvetica, sans-serif"
"""A font that a saved picture finds on other machines: a page's own is not in the file."""
CHAR_WIDTH = 0.6
"""Mean width of a letter of the title, which is bold, over its height."""
TITLE_LINE = 1.3
"""Height of a line of the title over that of its letters."""
LEAST_SHARE = 0.005
"""Share from which the meaning of a colour is given: what has less cannot be seen."""
ONE_HEIGHT = 0.62
"""Height of a picture of one run over that of two."""


def talk_figure(
    lanes: Sequence[Lane],
    title: str,
    *,
    length_s: float,
    note: str = "",
    meanings: Mapping[str, str] | None = None,
    strips: str = "whole run",
    size: Size = WIDE,
) -> go.Figure:
    """Returns the picture of these runs, with a lane and a strip for each.

    `length_s` is that of the stretches; `note` is a line at the bottom: what ran where. `meanings`
    says what a colour means where that is not its usual words (`style.ACTIVITY`), and `strips` what
    the strips show.
    """
    small = size.small
    height = size.height if len(lanes) > 1 else round(ONE_HEIGHT * size.height)
    left = round(6 * small)
    right = round(1.9 * small)
    edge = size.text
    title_lines = textwrap.wrap(title, int((size.width - 2 * edge) / (CHAR_WIDTH * size.title)))
    note_lines = textwrap.wrap(note, int((size.width - 2 * edge) / (0.5 * 0.8 * small)))
    legend_px = 2.5 * small
    top = round(0.8 * size.text + TITLE_LINE * size.title * len(title_lines) + legend_px)
    bottom = round(0.6 * small + 1.2 * 0.8 * small * len(note_lines))
    fits = CHAR_WIDTH * size.text * max(len(lane.name) + len(lane.says) for lane in lanes)
    stacked = fits > size.width - left - right
    rows = _rows(len(lanes), height - top - bottom, size, stacked=stacked)
    whole_s = max(float(lane.strip.end_s[-1]) if len(lane.strip.end_s) else 0.0 for lane in lanes)
    axis_scale, axis_unit = (1e3, "ms") if length_s < 1 else (1.0, "s")
    traces: list[dict[str, Any]] = []
    keys: list[str] = []
    for at, activity in enumerate(ACTIVITIES):
        words, colour = style.ACTIVITY[activity]
        words = (meanings or {}).get(activity, words)
        paint = {"type": "scatter", "name": words, "showlegend": False, **filled(colour)}
        boxes = [
            boxes_of(lane.stretch, at, row.lane) for lane, row in zip(lanes, rows, strict=True)
        ]
        x, y = joined(boxes)
        outlines = [
            outline(lane.strip, at, row.strip) for lane, row in zip(lanes, rows, strict=True)
        ]
        x2, y2 = joined(outlines)
        traces.append(paint | {"x": small_floats(x * axis_scale), "y": small_floats(y)})
        of_strip = {"x": small_floats(x2), "y": small_floats(y2), "xaxis": "x2", "yaxis": "y2"}
        traces.append(paint | of_strip)
        if any(_share(lane, at) >= LEAST_SHARE for lane in lanes):
            keys.append(f'<span style="color:{colour}">■</span> {words}')
    plot_px = height - top - bottom
    bold = [f"<b>{style.plain(line)}</b>" for line in title_lines]
    notes = [_above(bold, size.title, legend_px, edge - left)]
    notes.append(_above(["   ".join(keys)], small, 0.6 * small, edge - left))
    if note_lines:
        notes.append(_below(note_lines, small, edge - left))
    stretch_words = formats.seconds(length_s).replace(".00", "")
    for lane, row in zip(lanes, rows, strict=True):
        notes += _labels(lane, row, size, (stretch_words, strips), stacked=stacked)
    return go.Figure(traces).update_layout(
        width=size.width,
        height=height,
        font={"family": FONT},
        margin={"l": left, "r": right, "t": top, "b": bottom},
        xaxis=_axis([0, length_s * axis_scale], rows[-1].lane[1], plot_px, axis_unit, small),
        xaxis2=_axis([0, whole_s], rows[-1].strip[1], plot_px, "s", small, overlaying="x"),
        yaxis={"range": [plot_px, 0], "visible": False, "fixedrange": True},
        yaxis2={
            "range": [plot_px, 0],
            "visible": False,
            "fixedrange": True,
            "overlaying": "y",
            "anchor": "x2",
        },
        annotations=notes,
        hovermode=False,
    )


def _share(lane: Lane, activity: int) -> float:
    """Returns the share of one activity in what is drawn of a run: of the stretch or of the strip,
    whichever is more.
    """
    length_s = lane.strip.end_s - lane.strip.start_s
    whole = float((lane.strip.shares[activity] * length_s).sum() / max(length_s.sum(), 1e-9))
    if lane.stretch is None:
        return whole
    is_activity = lane.stretch.kind == activity
    shown_s = float((lane.stretch.end_s - lane.stretch.start_s)[is_activity].sum())
    return max(whole, shown_s / lane.stretch.length_s)


@dataclass(frozen=True)
class _Row:
    """Where a run is in the picture, in pixels from the plot's top."""

    label: float
    """The bottom of its name."""
    lane: tuple[float, float]
    """Top and bottom."""
    strip: tuple[float, float]


def _rows(n: int, plot_px: float, size: Size, *, stacked: bool) -> list[_Row]:
    """Returns where `n` runs are; `stacked`: name and figure are below each other."""
    label_px = (2.8 if stacked else 1.5) * size.text
    strip_px = 1.5 * size.text
    ticks_px = 1.7 * size.small
    between_px = 0.4 * size.text
    taken_px = n * (label_px + strip_px) + 2 * ticks_px + 3 * (n - 1) * between_px
    lane_px = max((plot_px - taken_px) / n, size.text)
    rows = []
    y = 0.0
    for at in range(n):
        y += label_px
        lane = (y, y + lane_px)
        # The ticks of both axes are below the last run's.
        y += lane_px + (ticks_px if at == n - 1 else between_px)
        strip = (y, y + strip_px)
        y += strip_px + 2 * between_px
        rows.append(_Row(lane[0] - 0.3 * size.text, lane, strip))
    return rows


def filled(colour: str) -> dict[str, Any]:
    """Returns the part of a trace whose closed lines are areas of this colour."""
    line = {"width": 0, "color": colour}
    return {
        "mode": "lines",
        "fill": "toself",
        "fillcolor": colour,
        "line": line,
        "hoverinfo": "skip",
    }


def boxes_of(
    stretch: Stretch | None, activity: int, y: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Returns the corners of a stretch's spans of one activity, each box a closed line; NaN is
    between them.
    """
    if stretch is None:
        return np.empty(0), np.empty(0)
    is_activity = stretch.kind == activity
    start_s = stretch.start_s[is_activity]
    end_s = stretch.end_s[is_activity]
    none = np.full(len(start_s), np.nan)
    x = np.stack([start_s, end_s, end_s, start_s, none], axis=1).ravel()
    top, bottom = y
    return x, np.tile([top, top, bottom, bottom, np.nan], len(start_s))


def outline(strip: Strip, activity: int, y: tuple[float, float]) -> tuple[Floats, Floats]:
    """Returns the outline of one activity's shares of a strip, which stand on those before it;
    nothing where it has none.
    """
    if not strip.shares[activity].any():
        return np.empty(0), np.empty(0)
    top, bottom = y
    under = strip.shares[:activity].sum(axis=0)
    over = under + strip.shares[activity]
    x = np.stack([strip.start_s, strip.end_s], axis=1).ravel()
    upper = bottom - np.repeat(over, 2) * (bottom - top)
    lower = bottom - np.repeat(under, 2) * (bottom - top)
    return np.concatenate([x, x[::-1], [np.nan]]), np.concatenate([upper, lower[::-1], [np.nan]])


def small_floats(values: Floats) -> NDArray[np.float32]:
    """Returns values in half as many bytes: a picture needs no more than 24 bits of each."""
    return values.astype(np.float32)


def joined(parts: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Returns the lines of all parts as one trace's."""
    x = np.concatenate([x for x, _ in parts])
    y = np.concatenate([y for _, y in parts])
    return x, y


def _axis(
    ends: Sequence[float], bottom: float, plot_px: float, unit: str, small: float, **more: Any
) -> dict[str, Any]:
    """Returns a time axis whose ticks are below `bottom`, in pixels from the plot's top."""
    place = {"anchor": "free", "position": min(max(1 - bottom / plot_px, 0.0), 1.0)}
    # "auto", or else the one that overlays has its ticks where the other has them.
    ticks = {"tickmode": "auto", "nticks": 6, "ticks": "outside"}
    looks = {"showgrid": False, "zeroline": False, **ticks}
    words = {"tickfont": {"size": small}, "ticksuffix": f" {unit}", "showticksuffix": "last"}
    return {"range": list(ends), "fixedrange": True, **place, **looks, **words, **more}


def _labels(
    lane: Lane, row: _Row, size: Size, before_them: tuple[str, str], *, stacked: bool
) -> list[dict[str, Any]]:
    """Returns the words of a run: its name and figure above it, and what the lane and the strip
    are, `before_them`.
    """

    def words(text: str, y: float, px: float, **more: Any) -> dict[str, Any]:
        at = {"xref": "paper", "yref": "y", "y": y, "showarrow": False, "font": {"size": px}}
        return {"text": text, **at, **more}

    above = {"yanchor": "bottom", "yref": "y"}
    before = {"x": 0, "xanchor": "right", "yanchor": "middle", "xshift": -0.5 * size.small}
    name = f"<b>{style.plain(lane.name)}</b>"
    says = style.plain(lane.says)
    if stacked and says:
        name += f"<br>{says}"
    found = [words(name, row.label, size.text, x=0, xanchor="left", align="left", **above)]
    if says and not stacked:
        found.append(words(says, row.label, size.text, x=1, xanchor="right", **above))
    for text, (top, bottom) in zip(before_them, (row.lane, row.strip), strict=True):
        found.append(words(text, (top + bottom) / 2, size.small, **before))
    return found


def _above(lines: Sequence[str], px: float, up_px: float, shift: float) -> dict[str, Any]:
    """Returns lines that stand so many pixels above the plot: the title, and what colours mean.

    Plotly's own title would have its first line where a single one is, and its legend breaks lines
    where there is room.
    """
    place = {"xref": "paper", "x": 0, "xanchor": "left", "xshift": shift}
    above = {"yref": "paper", "y": 1, "yanchor": "bottom", "yshift": up_px}
    looks = {"align": "left", "font": {"size": px}, "showarrow": False}
    return {"text": "<br>".join(lines), **place, **above, **looks}


def _below(lines: Sequence[str], small: float, shift: float) -> dict[str, Any]:
    """Returns the note at the bottom."""
    text = "<br>".join(style.plain(line) for line in lines)
    place = {"xref": "paper", "x": 0, "xanchor": "left", "xshift": shift}
    under = {"yref": "paper", "y": 0, "yanchor": "top", "yshift": -0.2 * small}
    looks = {"align": "left", "font": {"size": round(0.8 * small)}, "showarrow": False}
    return {"text": text, "opacity": 0.75, **place, **under, **looks}
