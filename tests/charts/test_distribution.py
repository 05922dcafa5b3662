"""The chart of distributions: stairs in milliseconds, marks that say in words what they mean."""

from __future__ import annotations

import numpy as np
import pytest

from vitprof.analysis.compare.comparison import distribution
from vitprof.charts.comparison import FLOOR_MS, ecdf


def test_a_stair_and_two_marks_for_each_run() -> None:
    waits = np.arange(1, 101) / 1e3
    figure = ecdf([("<a>", distribution(waits)), ("none", distribution(waits[:0])), ("c", distribution(waits * 10))])
    lines = [t for t in figure.data if t.mode == "lines"]
    assert [t.name for t in lines] == ["&lt;a&gt;", "c"]
    assert {t.line.shape for t in lines} == {"hv"}
    assert (float(lines[0].x[0]), float(lines[0].y[-1])) == (1.0, 100.0)
    marks = next(t for t in figure.data if t.mode == "markers")
    assert marks.x == pytest.approx([50, 95])
    assert marks.hovertext[1] == "&lt;a&gt;<br>95% of the steps waited at most 95.0 ms"
    assert marks.marker.color == lines[0].line.color != lines[1].line.color
    assert figure.layout.xaxis.type == "log"
    assert tuple(figure.layout.xaxis.range) == (0, 3)
    assert "(ms)" in figure.layout.xaxis.title.text
    assert "(%)" in figure.layout.yaxis.title.text


def test_no_wait_at_all_has_a_place_on_a_logarithmic_axis() -> None:
    figure = ecdf([("a", distribution(np.zeros(5)))])
    assert figure.data[0].x.tolist() == pytest.approx([FLOOR_MS, FLOOR_MS])
    assert figure.layout.xaxis.range[1] > figure.layout.xaxis.range[0]
    assert ecdf([]).data == ()
