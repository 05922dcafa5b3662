"""Charts of what has ended: Plotly figures with words for those who do not see them."""

from __future__ import annotations

import plotly.graph_objects as go

from vitprof.ui.live_chart import live_chart, still


def plot(figure: go.Figure, *, key: str, height: int, alt: str = "", zooms: bool = False) -> None:
    """Draws `figure`, `height` pixels high; `alt`, else what the figure says of itself, is for a screen reader.

    `zooms`: there is something to zoom in to. The browser has one Plotly, that of the live charts: `st.plotly_chart`
    would bring another one, of 4.6 MB.
    """
    words = alt or (figure.layout.meta or {}).get("alt", "") or described(figure)
    live_chart(still(figure.to_dict(), alt=words, bare=not zooms), key=key, height=height)


def described(figure: go.Figure) -> str:
    """Returns what a figure shows, from its axes and the names of its traces."""
    axes = [text for text in (figure.layout.yaxis.title.text, figure.layout.xaxis.title.text) if text]
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name))
    words = f"Chart of {' against '.join(axes)}" if axes else "Chart"
    return words + (f": {', '.join(names)}" if names else "")
