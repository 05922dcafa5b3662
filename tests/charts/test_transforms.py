"""The bars of transforms."""

from __future__ import annotations

import pytest

from vitprof.analysis.timing.loading import transform_times
from vitprof.charts.breakdown import transform_bars


def test_a_bar_for_each_in_the_order_of_the_compose() -> None:
    names = ("<lambda>", "a_function_with_a_very_long_name", "a_function_with_a_very_long_name (2)")
    told = {name: {"s_per_sample": (i + 1) * 1e-3, "calls": 5} for i, name in enumerate(names)}
    figure = transform_bars(transform_times({"transforms": told}))
    (bars,) = figure.data
    assert list(bars.x) == pytest.approx([1, 2, 3])
    assert bars.y[0] == "&lt;lambda&gt;", "no markup of somebody else's"
    assert len(set(bars.y)) == 3, "what is cut stays apart"
    assert list(bars.text) == ["17%", "33%", "50%"]
    assert figure.layout.yaxis.autorange == "reversed"
    assert max(map(len, figure.layout.yaxis.ticktext[1:])) == 22
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (
        "mean time for each sample (ms)",
        "transform",
    )
