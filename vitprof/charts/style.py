"""What all charts share: colours with one meaning, axes, margins, and text without markup."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's palette (2008), which can be told apart with every kind of colour vision. Further
# colours were chosen to stay apart from the rest of their chart in CIELAB as people with
# protanopia, deuteranopia and tritanopia see them (Machado et al. 2009); tests/charts measures
# that.
#
# One language in all charts, verdicts and chips: the device computes, green; it waits for data,
# orange, whose shades are the stages of loading and the starts of epochs; copies, blue; Python and
# launching, violet; all else, grey. What idles for no cause that is said is grey, too.
DATA_WAIT = "#E69F00"
HIDDEN_WAIT = "rgba(230, 159, 0, 0.4)"
"""Data wait that cost no device time."""
H2D = "#56B4E9"
COMPUTE = "#009E73"
HOST = "#785EF0"
EPOCH_BOUNDARY = "#8C510A"
LOGGING = "#9AA0A6"
LAUNCH_IDLE = "#8E44AD"
OUTSIDE = "#330044"
NEUTRAL = "#5F6368"
"""What has no colour of its own: other causes, error bars, what cannot be told."""
EVALUATION = "#C7CDD3"
GPU_UTIL = "#0072B2"
MEMORY = "#D55E00"
LOSS = "#CC79A7"
REFERENCE = "#999999"
"""What others are compared with: the truth by arithmetic, the settings beside the fastest."""
RUN_COLOURS = (GPU_UTIL, MEMORY, COMPUTE, DATA_WAIT, LOSS, H2D, "#F0E442", NEUTRAL)
"""Colours of runs, by place (`comparison.run_line`)."""

DEVICE_TIME: dict[str, tuple[str, str]] = {
    "compute": ("compute", COMPUTE),
    "data_wait": ("data wait", DATA_WAIT),
    "h2d": ("H2D", H2D),
    "host": ("host work", HOST),
    "epoch_boundary": ("epoch starts", EPOCH_BOUNDARY),
    "evaluation": ("evaluation", EVALUATION),
    "logging": ("recording", LOGGING),
    "outside": ("outside the step", OUTSIDE),
    "other": ("other", NEUTRAL),
    "launch_idle": ("launch bubbles", LAUNCH_IDLE),
}
"""Kinds of time (`timeline.KINDS`: compute, the causes of gaps, launch bubbles) -> their name and
colour."""

VERDICTS: dict[str, str] = {
    "input-bound": DATA_WAIT,
    "moderately input-bound": "#F4CE7C",
    "not input-bound": COMPUTE,
    "launch-bound": HOST,
    "inconclusive": NEUTRAL,
}
"""Kind of a verdict -> the colour of what it is about: of waits for data, a paler one for shorter
waits, of compute, or of Python and launching."""
CHIPS: dict[str, str] = {
    "input-bound": "#A84A00",
    "moderately input-bound": "#A06900",
    "not input-bound": "#00815E",
    "launch-bound": HOST,
    "inconclusive": NEUTRAL,
}
"""The same, dark enough for white text: with a contrast of at least 4.5 to 1 (WCAG 2, 1.4.3)."""

ACTIVITY: dict[str, tuple[str, str]] = {
    "compute": ("computes", COMPUTE),
    "data": ("waits for data", DATA_WAIT),
    "other": ("other", NEUTRAL),
}
"""What a device does in a picture of three colours (`timing.activity.ACTIVITIES`) -> its name and
colour."""

LOADING_COLOURS: dict[str, str] = {
    "sampler": "#B08050",
    "read": "#662506",
    "decode": "#CC4C02",
    "transform": "#FE9929",
    "collate": "#FEE391",
    "rest": NEUTRAL,
    "hand_over": "#A9CFEA",
}
"""Stages of loading and the rest (`timing.loading.STAGE_WORDS`) -> colour: shades of the data wait
that they cause, and of a copy for the hand-over."""

LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
MARGIN = {"l": 64, "r": 16, "t": 34, "b": 44}
WITH_LEGEND: dict[str, Any] = {"margin": MARGIN, "legend": LEGEND, "showlegend": True}
"""The layout of most charts."""


def plain(text: str) -> str:
    """Returns `text` with the characters escaped that Plotly reads as markup."""
    return html.escape(text, quote=False)


LUMINANCE_OF = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue in the relative luminance (WCAG 2.2)."""


def luminance(colour: str) -> float:
    """Returns the relative luminance of "#rrggbb", 0 to 1 (WCAG 2.2)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return sum(w * _linear(part) for w, part in zip(LUMINANCE_OF, parts, strict=True))


def _linear(part: float) -> float:
    """Returns the light of a part of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    if part <= 0.04045:
        return part / 12.92
    return float(((part + 0.055) / 1.055) ** 2.4)


def ink_on(colour: str) -> str:
    """Returns black or white, whichever contrasts more with `colour`.

    The contrast is at least 4.5, where Plotly's own choice has 3.4.
    """
    # WCAG's contrast is (L1 + 0.05) / (L2 + 0.05), of the lighter and the darker luminance.
    lit = luminance(colour) + 0.05
    with_black = lit / 0.05
    with_white = 1.05 / lit
    return "#000000" if with_black >= with_white else "#FFFFFF"


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Returns an axis of a Plotly layout with this title."""
    return {"title": {"text": title}, "zeroline": False, **more}


def categories(order: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
    """Returns an axis of names, which no zoom changes, in this order."""
    found: dict[str, Any] = {"type": "category", "fixedrange": True}
    if order is not None:
        found |= {"categoryorder": "array", "categoryarray": list(order)}
    return found | more


def labelled_bars(
    names: Sequence[str],
    lengths: Sequence[float],
    texts: Sequence[str],
    colour: str,
    hovers: Sequence[str],
) -> dict[str, Any]:
    """Returns a trace of horizontal bars, each with its text at its end."""
    bar_style = {"orientation": "h", "marker": {"color": colour, "line": {"width": 0}}}
    texted = {"text": texts, "textposition": "outside", "cliponaxis": False}
    return {"type": "bar", "x": lengths, "y": names, **bar_style, **texted, **hover_texts(hovers)}


def whiskers(
    values: Sequence[float], lows: Sequence[float], highs: Sequence[float], **more: Any
) -> dict[str, Any]:
    """Returns the error bars from `lows` to `highs` of a trace with these values."""
    up = [high - value for value, high in zip(values, highs, strict=True)]
    down = [value - low for value, low in zip(values, lows, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **more}


def hover_texts(text: Any) -> dict[str, Any]:
    """Returns the part of a trace that shows `text` under the pointer: one for all points, or one
    for each.
    """
    return {"hovertext": text, "hovertemplate": "%{hovertext}<extra></extra>"}


IN_BROWSER = Path(__file__).with_name("browser")
"""The directory of what draws charts in a browser. The dashboard serves every file of it."""
PLOTLY_JS = IN_BROWSER / "plotly-cartesian.min.js"
"""plotly.js-cartesian-dist-min 4.1.1 from npm, unchanged (MIT licence): charts with axes, the only
kind here.

The plotly package's own bundle also has maps and 3D: 4.8 MB against 1.5, and 2.3 s of a core
against 0.9 for each page that loads it (medians of 6, in turns, with a first chart of three points;
a busy machine)."""
