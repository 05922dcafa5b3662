"""The live chart: one Plotly plot that stays alive in the browser while its data grow.

The browser's side is charts/browser/live_chart.js. `st.plotly_chart` replaces its plot whenever the figure
changes, and the user's zoom is lost (Streamlit's pull request 16052 is open). Here each refresh
sends what is new, and zoom, pan and hidden traces survive. A page, in a
`st.fragment(run_every=0.5)`:

    view = view_of("gpu")  # what the user zoomed to: send finer data for it if there are any
    draw_growing(figure, key="gpu", run=run_id, alt="GPU utilisation over time", height=260)
"""

import base64
import hashlib
import json
import math
import secrets
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from vitprof.charts.style import IN_BROWSER, PLOTLY_JS

_Array = np.typing.NDArray[Any]
COLUMNS = ("x", "y", "base", "text", "hovertext", "customdata")
"""The parts of a trace that grow point by point. All else (style, a heat map's z, per-point
colours) is sent whole."""

CHART_JS = IN_BROWSER / "live_chart.js"
STATIC = "app/static"
"""Where `web.chart_files` serves both, below the app's root."""

# This is sent with every refresh, so it is short; the chart's module comes once. The URL of
# Streamlit's own bundle tells where the app's root is.
_BOOTSTRAP = """\
const b=document.querySelector('script[src*="static/js/"]'),r=b?new URL("../../",b.src):document.baseURI,
[u,p]=%s.map(f=>new URL(f,r).href),m=import(u).catch(()=>0);
export default async c=>{const l=await m;if(l)return l.%s(c,p);
c.parentElement.textContent=`This chart cannot be drawn: ${u} could not be loaded.`}"""

DEFLATE_FROM = 1500
"""Bytes from which an update is compressed; the few new points of a plain line would gain
nothing."""
MANTISSA_BITS = 11
"""Bits kept of the 23 of a y's mantissa: exact to 1 in 4,000, finer than any plot or hover text,
and far smaller when compressed."""


@dataclass(frozen=True)
class ChartUpdate:
    """What one refresh sends to the browser. `ChartFeed` and `still` make these."""

    run: str
    """Identity of what is drawn. A different one resets zoom and hidden traces."""
    revision: int
    """Counts up with every update of one feed; the same one twice is drawn once."""
    base: int | None
    """The revision that the browser must hold to append this, or else it asks for a full one. None:
    this is one."""
    figure: Mapping[str, Any] | None
    """data and layout of a full update; None in one to append."""
    traces: tuple[Mapping[str, Any], ...] = ()
    """To append, for each trace: `keep`, the number of points that stay (the last one often grows,
    and is rewritten), and columns."""
    layout: Mapping[str, Any] | None = None
    """In an update to append: the whole new layout, if it changed."""
    alt: str = ""
    """The description that a screen reader reads."""
    bare: bool = False
    """Whether the buttons to zoom and to save a picture are left out."""
    silent: bool = False
    """Whether the window that the user zooms to is not reported, because that would cause a
    refresh."""
    grows: bool = False
    """Whether the next update follows by itself: then drawing this one may wait, so that it takes
    little of a core."""


@dataclass(frozen=True)
class Pick:
    """A point that the user clicked."""

    trace: int
    """Number of its trace in the figure."""
    x: float
    """Its position on the x axis; NaN where that is not a number."""
    data: float
    """Its customdata; NaN where it has none."""


class ChartFeed:
    """A record of what the browser holds, which turns the current figure into the smallest update.

    There is one for each chart and session. If an update was lost, the browser reports that
    (`resync`).
    """

    def __init__(self) -> None:
        # A random start: a page left open over a restart of the server must not mistake one session
        # for another.
        self._revision = secrets.randbits(40)
        self._columns: list[dict[str, _Array]] = []
        self._layout = ""
        self._rest: object = None
        """Run, resync, style of each trace and names of its columns: if these change, all is
        sent."""

    def update(
        self, figure: Mapping[str, Any], *, run: str, alt: str = "", resync: object = None
    ) -> ChartUpdate:
        """Returns the update that makes the browser show `figure`.

        That is a plotly Figure's `to_dict()`; its template is left out. `resync` changes when the
        browser could not use an update: all is then sent.
        """
        layout = _without(figure.get("layout", {}), "template")
        columns = [_columns(trace) for trace in figure["data"]]
        styles = []
        for trace, column in zip(figure["data"], columns, strict=True):
            styles.append(_without(trace, *column))
        layout_json = _dumps(layout)
        rest = (run, resync, _dumps(styles), [list(column) for column in columns])
        before = self._columns
        same = rest == self._rest
        changed = layout_json != self._layout
        self._revision += 1
        self._columns = columns
        self._rest = rest
        self._layout = layout_json
        if not same:
            data = [{**style, **column} for style, column in zip(styles, columns, strict=True)]
            return ChartUpdate(run, self._revision, None, {"data": data, "layout": layout}, alt=alt)
        appended = tuple(_appended(old, new) for old, new in zip(before, columns, strict=True))
        return ChartUpdate(
            run,
            self._revision,
            self._revision - 1,
            None,
            appended,
            layout if changed else None,
            alt,
        )


def still(figure: Mapping[str, Any], *, alt: str = "", bare: bool = True) -> ChartUpdate:
    """Returns the update that makes the browser show `figure` whatever it holds; a different figure
    resets the zoom.
    """
    whole = {"data": figure["data"], "layout": _without(figure.get("layout", {}), "template")}
    digest = hashlib.sha256(_dumps(whole).encode()).hexdigest()
    return ChartUpdate(digest, int(digest[:10], 16), None, whole, alt=alt, bare=bare, silent=True)


def draw_growing(
    figure: Mapping[str, Any],
    *,
    key: str,
    run: str,
    alt: str,
    height: int,
    grows: bool = False,
    on_pick: Callable[[Pick], None] | None = None,
) -> None:
    """Draws `figure`; sends what is new since this session drew the chart `key` before.

    See `ChartFeed.update`.
    """
    feed: ChartFeed = st.session_state.setdefault(f"feed-{key}", ChartFeed())
    update = feed.update(figure, run=run, alt=alt, resync=_reported(key).get("resync"))
    live_chart(replace(update, grows=grows), key=key, height=height, on_pick=on_pick)


def live_chart(
    update: ChartUpdate,
    *,
    key: str,
    height: int = 260,
    on_pick: Callable[[Pick], None] | None = None,
) -> None:
    """Mounts the chart. `on_pick` is called before the refresh that a click causes."""

    def picked() -> None:
        pick = _pick(key)
        if on_pick is not None and pick is not None:
            on_pick(pick)

    # Declared at each mount: every AppTest has a runtime of its own, and Streamlit 1.60 did not
    # carry components over.
    mount = st.components.v2.component(
        "vitprof_live_chart",
        js=_bootstrap("default"),
        isolate_styles=False,
    )
    mount(
        key=key,
        data=payload(update, key=key, height=height, view=view_of(key), picks=on_pick is not None),
        on_view_change=_ignore,
        on_picked_change=picked,
        on_resync_change=_ignore,
    )


def _bootstrap(mounts: str) -> str:
    """Returns the JavaScript that loads the chart's module and calls this function of it."""
    return _BOOTSTRAP % (json.dumps([url_of(CHART_JS), url_of(PLOTLY_JS)]), mounts)


def picture(wide: go.Figure, narrow: go.Figure, *, key: str, name: str, alt: str) -> None:
    """Draws a picture to take away, with a button for each format that it can be saved in.

    On a narrow page `narrow` is shown; what is saved is always `wide`. Both have a width and a
    height; `name` is the file's, without a suffix.
    """
    sent = {}
    for size, figure in (("wide", wide), ("narrow", narrow)):
        plain = figure.to_dict()
        data = [trace | _columns(trace) for trace in plain["data"]]
        sent[size] = {"data": data, "layout": _without(plain["layout"], "template")}
    body = zlib.compress(_dumps({**sent, "name": name, "alt": alt}).encode(), 6)
    message = key.encode() + b"\n" + body  # as in `payload`
    mount = st.components.v2.component(
        "vitprof_picture", js=_bootstrap("picture"), isolate_styles=False
    )
    mount(key=key, data=message)


@lru_cache
def url_of(source: Path) -> str:
    """Returns the URL of a file of `IN_BROWSER`, relative to the app's root.

    The file's digest in it keeps browsers from using an older version.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return f"{STATIC}/{source.name}?v={digest[:12]}"


def view_of(key: str) -> tuple[float, float] | None:
    """Returns the window in x that the user zoomed or panned to; None: everything.

    It is as the browser last reported it.
    """
    view = _reported(key).get("view")
    if not isinstance(view, list) or len(view) != 2 or not all(map(_is_number, view)):
        return None
    low, high = view
    if not low < high:
        return None
    return float(low), float(high)


def _reported(key: str) -> Mapping[str, Any]:
    reported = st.session_state.get(key)
    return reported if isinstance(reported, Mapping) else {}


def payload(
    update: ChartUpdate,
    *,
    key: str,
    height: int,
    view: tuple[float, float] | None,
    picks: bool = False,
) -> bytes:
    """Returns the update as it is sent: key, line feed, UTF-8 JSON with numbers in base64, as
    Plotly has them.

    As bytes, because Streamlit serialises a dict twice. A y takes about 4 bytes (float32), as text
    10 to 18. An x stays float64 unless it is whole: after an hour a float32 cannot resolve half a
    millisecond. From `DEFLATE_FROM` bytes on, the JSON is a zlib stream (RFC 1950), whose first
    byte (0x78) no JSON object begins with.
    """
    sent = {}
    for name, value in vars(update).items():
        if value is not None and value is not False and value != ():
            sent[name] = value
    if picks:
        sent["picks"] = True
    body = _dumps({**sent, "height": height, "view": view}).encode()
    if len(body) >= DEFLATE_FROM:
        body = zlib.compress(body, 6)
    return key.encode() + b"\n" + body


def _ignore() -> None: ...


def _pick(key: str) -> Pick | None:
    """Returns the click that the browser reported, as far as it is valid."""
    clicked = _reported(key).get("picked")
    if not isinstance(clicked, Mapping) or not _is_number(clicked.get("trace")):
        return None
    return Pick(
        int(clicked["trace"]), _number_or_nan(clicked.get("x")), _number_or_nan(clicked.get("data"))
    )


def _number_or_nan(value: object) -> float:
    return float(value) if _is_number(value) else math.nan


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _columns(trace: Mapping[str, Any]) -> dict[str, _Array]:
    columns = {}
    for name in COLUMNS:
        values = trace.get(name)
        if isinstance(values, Mapping) and "bdata" in values:  # as Figure.to_dict() has them
            shape = [int(size) for size in str(values.get("shape", "-1")).split(",")]
            data = base64.b64decode(values["bdata"])
            values = np.frombuffer(data, values["dtype"]).reshape(shape)
        column = np.array(values)  # a copy: the caller may go on filling its buffer
        if column.ndim:  # one text for all points is style
            columns[name] = column
    return columns


def _appended(old: dict[str, _Array], new: dict[str, _Array]) -> dict[str, Any]:
    keep = min((_common(old[name], new[name]) for name in new), default=0)
    return {"keep": keep, **{name: values[keep:] for name, values in new.items()}}


def _common(old: _Array, new: _Array) -> int:
    """Returns how many leading points are the same; NaN is the same as NaN."""
    size = min(len(old), len(new))
    if old.dtype.kind != new.dtype.kind or old.shape[1:] != new.shape[1:]:
        return 0
    a = old[:size]
    b = new[:size]
    differs = a != b
    if a.dtype.kind == "f":
        differs &= ~(np.isnan(a) & np.isnan(b))
    differing = np.flatnonzero(differs.any(axis=tuple(range(1, differs.ndim))))
    if not len(differing):
        return size
    return int(differing[0])


def _dumps(value: object) -> str:
    return json.dumps(_jsonable(value, "x"), separators=(",", ":"), allow_nan=False)


def _jsonable(value: Any, name: str) -> Any:
    """Returns `value` without NumPy types, NaN and infinity; `name` is the attribute that holds
    it.
    """
    if isinstance(value, np.ndarray):
        return _encoded(value, name)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item, name) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


def _encoded(values: _Array, name: str) -> Any:
    """Returns Plotly's form of a typed array, in which NaN is a gap.

    Text, times and mixed values become a list.
    """
    kind = values.dtype.kind
    if kind not in "iuf" or not values.size:
        return _jsonable(values.tolist(), name)
    if kind == "f" and name == "x":
        # numbers of steps are whole; where NaN is among them, it is not below
        fits = bool(np.abs(values).max() < 2**31)
        whole = fits and bool((values.astype("<i4") == values).all())
        values = values.astype("<i4" if whole else "<f8")
    elif kind == "f":
        values = _shortened(values.astype("<f4"))
    else:
        narrow = values.min() >= -(2**31) and values.max() < 2**31
        values = values.astype("<i4" if narrow else "<f8")
    coded = {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(values.tobytes()).decode()}
    if values.ndim > 1:
        coded["shape"] = ", ".join(map(str, values.shape))
    return coded


def _shortened(values: _Array) -> _Array:
    """Returns float32 values rounded to `MANTISSA_BITS` bits; NaN and infinity stay as they are."""
    drop = 23 - MANTISSA_BITS
    half = np.uint32(1 << (drop - 1))
    kept_bits = np.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)
    rounded = ((values.view("<u4") + half) & kept_bits).view("<f4")
    return np.where(np.isfinite(values) & np.isfinite(rounded), rounded, values)


def plot(figure: go.Figure, *, key: str, height: int, alt: str = "", zooms: bool = False) -> None:
    """Draws `figure`, `height` pixels high, with `zooms` with buttons to zoom.

    Screen readers get `alt`, or else the figure's own description. Not `st.plotly_chart`, which
    would load a second Plotly of 4.6 MB.
    """
    words = alt or (figure.layout.meta or {}).get("alt", "") or described(figure)
    live_chart(still(figure.to_dict(), alt=words, bare=not zooms), key=key, height=height)


def described(figure: go.Figure) -> str:
    """Returns what a figure shows, from its axes and the names of its traces."""
    titles = (figure.layout.yaxis.title.text, figure.layout.xaxis.title.text)
    axes = [title for title in titles if title]
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name))
    words = "Chart"
    if axes:
        words += f" of {' against '.join(axes)}"
    if names:
        words += f": {', '.join(names)}"
    return words
