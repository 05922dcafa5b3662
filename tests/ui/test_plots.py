"""Charts in words."""

from __future__ import annotations

import plotly.graph_objects as go

from vitprof.ui.live_chart import described, still


def test_a_chart_without_words_of_its_own_is_described_by_its_axes_and_traces() -> None:
    figure = go.Figure([go.Bar(name="compute"), go.Bar(name="data wait"), go.Bar(name="compute")])
    assert described(figure) == "Chart: compute, data wait"
    figure.update_layout(xaxis={"title": {"text": "step"}}, yaxis={"title": {"text": "time (ms)"}})
    assert described(figure) == "Chart of time (ms) against step: compute, data wait"
    assert described(go.Figure()) == "Chart"


def test_another_figure_is_another_revision() -> None:
    """By that the browser tells whether there is something to draw."""
    bars, others = (go.Figure([go.Bar(x=["a"], y=[y])]).to_dict() for y in (1, 2))
    update = still(bars, alt="bars")
    assert update == still(bars, alt="bars")
    assert update.revision != still(others).revision
    assert update.base is None
    assert update.silent
    assert set(update.figure or ()) == {"data", "layout"}
