"""Charts of finished runs side by side."""

import numpy as np
import pytest

from vitprof.analysis.compare.comparison import distribution
from vitprof.charts.comparison import FLOOR_MS, ecdf, overlay, shares
from vitprof.charts.style import COMPUTE, DATA_WAIT


def test_runs_are_laid_over_or_beside_each_other_under_their_own_names() -> None:
    x = np.arange(3.0)
    names = ["<b>bold</b> & co", *(f"run {i}" for i in range(9))]
    figure = overlay(
        [(name, x, x * i) for i, name in enumerate(names)], x_title="step", y_title="loss"
    )
    assert [t.name for t in figure.data] == ["&lt;b&gt;bold&lt;/b&gt; &amp; co", *names[1:]]
    assert (figure.data[2].y.tolist(), len({t.line.color for t in figure.data[:8]})) == (
        [0, 2, 4],
        8,
    )
    assert len({(t.line.color, t.line.dash) for t in figure.data}) == 10
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("step", "loss")
    assert overlay([], x_title="x", y_title="y").data == ()
    (gappy,) = overlay([("a", x, x)], x_title="step", y_title="loss", connectgaps=True).data
    assert gappy.connectgaps  # not each loss is copied from a GPU
    figure = shares(
        ["a", "<i>"], [("data wait", DATA_WAIT, [1.0, 2.0]), ("compute", COMPUTE, [3.0, 0.5])]
    )
    assert figure.layout.barmode == "stack"
    assert [(t.name, t.marker.color, list(t.x)) for t in figure.data] == [
        ("data wait", DATA_WAIT, [1.0, 2.0]),
        ("compute", COMPUTE, [3.0, 0.5]),
    ]
    assert list(figure.data[0].y) == ["a", "&lt;i&gt;"]
    assert "ms" in figure.layout.xaxis.title.text


def test_a_stair_and_two_marks_for_each_run_also_without_a_wait() -> None:
    waits = np.arange(1, 101) / 1e3
    figure = ecdf(
        [
            ("<a>", distribution(waits)),
            ("none", distribution(waits[:0])),
            ("c", distribution(waits * 10)),
        ]
    )
    lines = [t for t in figure.data if t.mode == "lines"]
    assert [t.name for t in lines] == ["&lt;a&gt;", "c"]
    assert {t.line.shape for t in lines} == {"hv"}
    assert (float(lines[0].x[0]), float(lines[0].y[-1])) == (1.0, 100.0)
    marks = next(t for t in figure.data if t.mode == "markers")
    assert marks.x == pytest.approx([50, 95])
    assert marks.hovertext[1] == "&lt;a&gt;<br>95% of the steps waited at most 95.0 ms"
    assert marks.marker.color == lines[0].line.color != lines[1].line.color
    assert figure.layout.xaxis.type == "log"
    assert "(ms)" in figure.layout.xaxis.title.text
    assert "(%)" in figure.layout.yaxis.title.text
    figure = ecdf([("a", distribution(np.zeros(5)))])
    assert figure.data[0].x.tolist() == pytest.approx([FLOOR_MS, FLOOR_MS])
    assert ecdf([]).data == ()
