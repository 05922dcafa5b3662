"""Charts of a tournament."""

import dataclasses
import math

import pytest

from tests.analysis.tournament.tournament_entries import entry, ranked
from vitprof.analysis.tournament.leaderboard import Leaderboard, article_table
from vitprof.analysis.tournament.recommend import pareto
from vitprof.charts import tournament as charts
from vitprof.charts.heat_map import article_heat

GIB = 2.0**30
BASE = entry("per-sample", 1000, prepare_s=0.0, rss_peak_bytes=0.5 * GIB)


def board() -> Leaderboard:
    made = [
        BASE,
        entry(
            "pt-memory", 8000, prepare_s=90.0, rss_peak_bytes=2 * GIB, gpu_mem_peak_bytes=1.5 * GIB
        ),
        entry("pt-memory", 9000, batch_size=512, prepare_s=90.0, rss_peak_bytes=2 * GIB),
        entry("memmap", 8950, batch_size=512, seed=2, prepare_s=20.0, rss_peak_bytes=GIB),
        entry(
            "lmdb<b>",
            500,
            batch_size=512,
            prepare_s=50.0,
            rss_peak_bytes=3 * GIB,
            status="cut",
            reason="too slow",
        ),
        entry("hdf5", 0, runs=0, batch_size=512, status="failed", reason="no <i>room</i>"),
    ]
    return ranked(*made, n_train=60_000)


EMPTY = ranked(dataclasses.replace(BASE, outcomes=(), status="waiting"), n_train=60_000)


@pytest.mark.parametrize("found", [board(), EMPTY], ids=["full", "empty"])
def test_each_has_a_title_units_words_and_no_colours_of_a_theme(found: Leaderboard) -> None:
    table = article_table(found)
    heat = [article_heat(table), article_heat(table, "speed_up")]
    costs = [charts.pareto_chart(found, cost) for cost in charts.COSTS]
    for figure in (*heat, *costs, charts.throughput_bars(found), charts.break_even_chart(found)):
        layout = figure.layout
        assert all((layout.title.text, layout.xaxis.title.text, len(layout.meta["alt"]) > 20))
        assert (layout.paper_bgcolor, layout.font.color) == (None, None)
        assert "<b>" not in figure.to_json().replace("\\u003c", "<")


def test_heat_is_in_words_and_what_failed_is_empty() -> None:
    heat, empty = article_heat(article_table(board())).data
    assert list(heat.x) == ["64", "512"]
    rows = {name: number for number, name in enumerate(heat.y)}
    at = rows["pt-memory"]
    assert heat.z[at][0] == pytest.approx(math.log10(60 / 8), abs=0.02)
    assert heat.text[at][0].endswith(" s")
    for words in ("pt-memory, batch 64", "an epoch", "samples/s", "times the baseline"):
        assert words in heat.hovertext[at][0]
    assert heat.z[rows["hdf5"]][1] is None
    places = zip(empty.x, empty.y, strict=True)
    cells = dict(zip(places, zip(empty.text, empty.hovertext, strict=True), strict=True))
    assert cells["512", "hdf5"] == (
        "failed",
        "hdf5, batch 512<br>failed: no &lt;i&gt;room&lt;/i&gt;",
    )
    assert cells["64", "memmap"] == ("", "memmap, batch 64<br>not part of the tournament")
    assert heat.z[rows["lmdb&lt;b&gt;"]][1] is not None
    assert "cut: too slow" in heat.hovertext[rows["lmdb&lt;b&gt;"]][1]

    equal = [entry("base", 1000), entry("same", 1000, seed=1), entry("a", 3000)]
    (heat,) = article_heat(article_table(ranked(*equal)), "speed_up").data
    texts = {name: row[0] for name, row in zip(heat.y, heat.text, strict=True)}
    assert texts["same"].endswith("x, as fast within 5%")
    assert texts["a"].endswith("x")


def test_bars_have_intervals_equals_and_the_baseline() -> None:
    found = board()
    figure = charts.throughput_bars(found)
    groups = {trace.name: trace for trace in figure.data}
    assert list(groups["fastest"].y) == ["pt-memory, batch 512"]
    assert list(groups["as fast, within 5%"].y) == ["memmap, batch 512"]
    assert groups["as fast, within 5%"].marker.pattern.shape == "/"
    assert set(groups["slower"].y) == {
        "pt-memory, batch 64",
        "per-sample, batch 64",
        "lmdb&lt;b&gt;, batch 512",
    }
    best = found.rows[0]
    rim, whiskers, _ = figure.data[-3:]
    for trace in (rim, whiskers):
        assert trace.error_x.array[0] == pytest.approx(best.high - best.samples_per_s)
        assert trace.error_x.arrayminus[0] == pytest.approx(best.samples_per_s - best.low)
    assert rim.error_x.thickness > whiskers.error_x.thickness
    beside = dict(zip(figure.layout.yaxis2.tickvals, figure.layout.yaxis2.ticktext, strict=True))
    assert (list(beside), list(beside.values())[-2:]) == (list(rim.y), ["baseline", "0.503x"])
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range, "a text stands beside its bar"
    base = found.row(BASE.key)
    assert [shape.x0 for shape in figure.layout.shapes] == [base.samples_per_s]
    assert any("cut short: too slow" in text for text in groups["slower"].hovertext)
    made = [entry("base", 1000), entry("a", 2000), entry("a", 500, page_cache="cold")]
    groups = {bar.name: list(bar.y) for bar in charts.throughput_bars(ranked(*made)).data}
    assert (groups["fastest"], groups["another page cache"]) == (
        ["a, batch 64"],
        ["a, batch 64, cold cache"],
    )


def test_the_front_is_drawn_and_labelled() -> None:
    found = board()
    on, off = charts.pareto_chart(found, "rss_bytes").data
    assert (list(on.x), len(on.x)) == (pytest.approx([0.5, 1, 2]), len(pareto(found, "rss_bytes")))
    assert list(on.text) == ["per-sample, batch 64", "memmap, batch 512", "pt-memory, batch 512"]
    assert (list(on.marker.symbol), len(off.text)) == (["diamond", "circle", "circle"], len(off.x))
    assert "memory of the processes: 3.00 GiB" in off.hovertext[-1]
    assert "(GiB)" in charts.pareto_chart(found, "rss_bytes").layout.xaxis.title.text
    assert "(min)" in charts.pareto_chart(found, "prepare_s").layout.xaxis.title.text
    assert "MiB" in charts.pareto_chart(found, "disk_bytes").layout.xaxis.title.text


def test_break_even_marks_where_lines_cross() -> None:
    figure = charts.break_even_chart(board())
    *lines, marks = figure.data
    assert (lines[0].name, lines[0].line.dash) == ("per-sample, batch 64 (baseline)", "dash")
    assert lines[0].y[-1] / lines[0].x[-1] == pytest.approx(
        1, rel=0.02
    )  # 60 s an epoch, in minutes
    assert "(min)" in figure.layout.yaxis.title.text
    assert marks.name == "break-even"
    assert len(marks.x) == 3  # the slow one never pays
    by_name = {line.name: line for line in lines}
    for x, y, hover in zip(marks.x, marks.y, marks.hovertext, strict=True):
        line = by_name[hover.split("<br>")[0]]
        slope = (line.y[-1] - line.y[0]) / (line.x[-1] - line.x[0])
        assert y == pytest.approx(line.y[0] + slope * x)
        assert "pays for its preparation" in hover
    assert "for 0 epochs" in lines[1].hovertext[0]
    assert not charts.break_even_chart(EMPTY).data
    made = [entry("base", 1000), *(entry(f"s{i}", 2000 + i, prepare_s=5.0) for i in range(12))]
    lines = charts.break_even_chart(ranked(*made, n_train=60_000)).data[:-1]
    assert (len(lines), len({line.line.color for line in lines})) == (8, 8)
