"""Charts of finished runs side by side."""

from __future__ import annotations

import numpy as np

from vitprof import charts
from vitprof.charts import overlay, shares


def test_runs_are_laid_over_each_other_under_their_own_names() -> None:
    x = np.arange(3.0)
    names = ["<b>bold</b> & co", *(f"run {i}" for i in range(9))]
    figure = overlay([(name, x, x * i) for i, name in enumerate(names)], x_title="step", y_title="loss")
    assert [t.name for t in figure.data] == ["&lt;b&gt;bold&lt;/b&gt; &amp; co", *names[1:]]
    assert figure.data[2].y.tolist() == [0, 2, 4]
    assert len({t.line.color for t in figure.data[:8]}) == 8
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("step", "loss")
    assert overlay([], x_title="x", y_title="y").data == ()


def test_shares_are_stacked_bars_of_one_run_each() -> None:
    figure = shares(
        ["a", "<i>"], [("data wait", charts.DATA_WAIT, [1.0, 2.0]), ("compute", charts.COMPUTE, [3.0, 0.5])]
    )
    assert figure.layout.barmode == "stack"
    assert [(t.name, t.marker.color, list(t.x)) for t in figure.data] == [
        ("data wait", charts.DATA_WAIT, [1.0, 2.0]),
        ("compute", charts.COMPUTE, [3.0, 0.5]),
    ]
    assert list(figure.data[0].y) == ["a", "&lt;i&gt;"]
    assert "ms" in figure.layout.xaxis.title.text
