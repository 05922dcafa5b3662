"""The picture for a talk: areas that are the shares, words that fit, and both runs on the same axes."""

import json
from typing import Any

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder

from tests.series import made_steps
from vitprof.analysis.timing.activity import typical_stretch, whole_run
from vitprof.charts.style import COMPUTE, DATA_WAIT
from vitprof.charts.talk import (
    CHAR_WIDTH,
    IN_NARROW_REPORT,
    IN_REPORT,
    NARROW,
    WIDE,
    Lane,
    Size,
    talk_figure,
)

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW, IN_REPORT, IN_NARROW_REPORT])
TITLE = "The GPU waits for data 70% of the time; with memory 0.3%: 3.3x faster"


def lane(name: str, wait_s: float, n: int = 150) -> Lane:
    steps = made_steps([wait_s] * n, 0.004)
    share = wait_s / (wait_s + 0.004)
    return Lane(
        name, f"waits for data {share:.0%}", typical_stretch(steps, (), 0.2), whole_run(steps)
    )


NOW = lane("now", 0.009)
FIXED = lane("with memory", 0.0001)


def words(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


@SIZES
def test_a_picture_is_valid_and_its_words_are_inside(size: Size) -> None:
    figure = talk_figure(
        [NOW, FIXED], TITLE, length_s=0.2, note="vitprof, runs 5 and 12", size=size
    )
    json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder)
    assert (figure.layout.width, figure.layout.height) == (size.width, size.height)
    title, keys, note, *labels = figure.layout.annotations
    lines = title.text.replace("<b>", "").replace("</b>", "").split("<br>")
    assert " ".join(lines) == TITLE
    assert all(len(line) * CHAR_WIDTH * title.font.size <= size.width for line in lines)
    assert title.font.size > labels[0].font.size > keys.font.size > note.font.size
    plot_px = size.height - figure.layout.margin.t - figure.layout.margin.b
    assert plot_px > 0.5 * size.height, "most of it is the picture"
    for trace in figure.data:
        assert np.nanmin(trace.y, initial=0) >= 0
        assert np.nanmax(trace.y, initial=0) <= plot_px
    assert {"<b>now</b>", "<b>with memory</b>"} <= {text.split("<br>")[0] for text in words(figure)}
    assert "waits for data 69%" in " ".join(words(figure))


def test_words_of_a_slide_are_read_from_the_last_row() -> None:
    """A fortieth of a slide's height is what guides for slides call readable: 18 px of 720."""
    figure = talk_figure([NOW, FIXED], TITLE, length_s=0.2, size=WIDE)
    sizes = [note.font.size for note in figure.layout.annotations]
    sizes += [figure.layout.xaxis.tickfont.size, figure.layout.xaxis2.tickfont.size]
    assert min(sizes) >= WIDE.height / 40


def test_both_runs_have_the_same_axes() -> None:
    figure = talk_figure([NOW, FIXED], TITLE, length_s=0.2)
    assert list(figure.layout.xaxis.range) == [0, 200]
    assert list(figure.layout.xaxis2.range) == [0, pytest.approx(150 * 0.013)]
    computes, strips = figure.data[:2]
    assert (computes.fillcolor, figure.data[2].fillcolor) == (COMPUTE, DATA_WAIT)
    boxes = computes.x[~np.isnan(computes.x)].reshape(-1, 4)
    tops = computes.y[~np.isnan(computes.y)].reshape(-1, 4)[:, 0]
    shares = [
        (boxes[tops == top, 1] - boxes[tops == top, 0]).sum() / 200 for top in np.unique(tops)
    ]
    assert shares == pytest.approx([4 / 13, 4 / 4.1], abs=0.02), "the slow one is on top"
    assert np.nanmax(strips.x) == pytest.approx(150 * 0.013)
    one = talk_figure([NOW], "Alone", length_s=0.2)
    assert one.layout.height < figure.layout.height


def test_colours_that_are_not_seen_are_not_explained() -> None:
    figure = talk_figure([NOW], "One", length_s=0.2)
    (keys,) = (text for text in words(figure) if "computes" in text)
    assert ("waits for data" in keys, "other" in keys) == (True, False)
    more = talk_figure([NOW], "One", length_s=0.2, meanings={"data": "waits for data and copies"})
    assert any("waits for data and copies" in text for text in words(more))


def test_names_are_no_markup_and_a_run_may_have_no_stretch() -> None:
    steps = made_steps([0.01] * 3, 0.01)
    short = Lane("<b>", "", None, whole_run(steps))
    figure = talk_figure([short], "<i>", length_s=0.2)
    assert "<b>&lt;b&gt;</b>" in words(figure)
    assert "<b>&lt;i&gt;</b>" in words(figure)
    assert not len(figure.data[0].x)
