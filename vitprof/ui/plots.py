"""Charts of what has ended: Plotly figures with words for those who do not see them."""

from __future__ import annotations

import inspect
from typing import Any

import plotly.graph_objects as go
import streamlit as st

STILL = {"displaylogo": False, "displayModeBar": False}
"""Configuration of a chart in which there is nothing to zoom in to."""
WITH_ZOOM = {"displaylogo": False}

_TAKES_ALT = "alt" in inspect.signature(st.plotly_chart).parameters
"""Streamlit has taken it since a version after 1.60, the oldest that vitprof runs on."""


def plot(figure: go.Figure, *, key: str, height: int, alt: str, config: dict[str, Any] = STILL) -> None:
    """Put `figure` on the page, `height` pixels high; `alt` is what a screen reader says."""
    words: dict[str, Any] = {"alt": alt} if _TAKES_ALT else {}
    st.plotly_chart(figure, height=height, key=key, config=config, **words)
