"""Charts of what has ended: Plotly figures with words for those who do not see them."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

STILL = {"displaylogo": False, "displayModeBar": False}
"""Configuration of a chart in which there is nothing to zoom in to."""
WITH_ZOOM = {"displaylogo": False}


def plot(figure: go.Figure, *, key: str, height: int, alt: str = "", config: dict[str, Any] = STILL) -> None:
    """Draws `figure`, `height` pixels high; `alt`, else what the figure says of itself, is for a screen reader."""
    words = alt or (figure.layout.meta or {}).get("alt", "") or described(figure)
    st.plotly_chart(figure, height=height, key=key, config=config, alt=words)


def described(figure: go.Figure) -> str:
    """Returns what a figure shows, from its axes and the names of its traces."""
    axes = [text for text in (figure.layout.yaxis.title.text, figure.layout.xaxis.title.text) if text]
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name))
    words = f"Chart of {' against '.join(axes)}" if axes else "Chart"
    return words + (f": {', '.join(names)}" if names else "")
