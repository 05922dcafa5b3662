"""Charts of runs that have ended: Plotly figures with a description for screen readers."""

from __future__ import annotations

import plotly.graph_objects as go

from vitprof.ui.live_chart import live_chart, still


def plot(figure: go.Figure, *, key: str, height: int, alt: str = "", zooms: bool = False) -> None:
    """Draws `figure`, `height` pixels high. Screen readers get `alt`, or else the figure's own description.

    With `zooms` it has the buttons to zoom. Not `st.plotly_chart`, which would load a second Plotly of 4.6 MB beside
    that of the live charts.
    """
    words = alt or (figure.layout.meta or {}).get("alt", "") or described(figure)
    live_chart(still(figure.to_dict(), alt=words, bare=not zooms), key=key, height=height)


def described(figure: go.Figure) -> str:
    """Returns what a figure shows, from its axes and the names of its traces."""
    axes = [text for text in (figure.layout.yaxis.title.text, figure.layout.xaxis.title.text) if text]
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name))
    words = f"Chart of {' against '.join(axes)}" if axes else "Chart"
    return words + (f": {', '.join(names)}" if names else "")
