"""Charts in words."""

from __future__ import annotations

import plotly.graph_objects as go

from vitprof.ui.plots import described


def test_a_chart_without_words_of_its_own_is_described_by_its_axes_and_traces() -> None:
    figure = go.Figure([go.Bar(name="compute"), go.Bar(name="data wait"), go.Bar(name="compute")])
    assert described(figure) == "Chart: compute, data wait"
    figure.update_layout(xaxis={"title": {"text": "step"}}, yaxis={"title": {"text": "time (ms)"}})
    assert described(figure) == "Chart of time (ms) against step: compute, data wait"
    assert described(go.Figure()) == "Chart"
