"""Points kept over refreshes are those that a chart drawn anew would have."""

from __future__ import annotations

import numpy as np
import pytest

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.downsample import group_size
from vitprof.charts.live import BATCHES, GAPS, LOSSES, LiveChart, Points
from vitprof.ui.series import PointCache, window

ORIGIN_S = 50.0


def made_up(n: int) -> Series:
    rng = np.random.default_rng(1)
    names = ("data_wait_s", "exposed_wait_s", "h2d_s", "compute_s", "gap_s", "step_s", "loss")
    series = {name: rng.uniform(0.1, 1.0, n) for name in names}
    series["t_start_s"] = ORIGIN_S + np.arange(n) * 2.0
    series["compute_start_s"] = series["t_start_s"] + 1.0
    return series


def first(series: Series, n: int) -> Series:
    return {name: values[:n] for name, values in series.items()}


def anew(chart: LiveChart, series: Series, view: tuple[float, float] | None) -> list[Points]:
    start, stop, groups = window(chart, series, ORIGIN_S, view)
    return chart.build(series, ORIGIN_S, start, stop, group_size(stop - start, groups))


def same(a: list[Points], b: list[Points]) -> bool:
    return all(
        np.array_equal(p.x, q.x) and np.array_equal(p.y, q.y) and list(p.text or ()) == list(q.text or ())
        for p, q in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("chart", [GAPS, BATCHES, LOSSES], ids=lambda c: c.key)
def test_growing_run(chart: LiveChart) -> None:
    series, cache = made_up(5000), PointCache()
    for n in (1, 2, 7, 150, 161, 640, 660, 661, 2599, 2601, 5000, 5000):
        grown = first(series, n)
        assert same(cache.points(chart, 1, grown, ORIGIN_S, None), anew(chart, grown, None))


def test_another_run_another_view_and_back() -> None:
    chart, cache, long, short = GAPS, PointCache(), made_up(4000), made_up(300)
    for run_id, series, view in (
        (1, long, None),
        (1, long, (100.0, 140.0)),
        (1, long, (120.0, 180.0)),
        (1, long, None),
        (2, short, None),
        (1, long, None),
    ):
        assert same(cache.points(chart, run_id, series, ORIGIN_S, view), anew(chart, series, view))


def test_full_groups_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[int, int]] = []

    def counting(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
        built.append((start, stop))
        return GAPS.build(series, origin, start, stop, k)

    chart = LiveChart(**{**vars(GAPS), "build": counting})
    series, cache = made_up(100_000), PointCache()
    cache.points(chart, 1, first(series, 90_000), ORIGIN_S, None)
    built.clear()
    cache.points(chart, 1, first(series, 90_010), ORIGIN_S, None)
    assert sum(stop - start for start, stop in built) <= 1024 + 10


@pytest.mark.parametrize(
    ("chart", "view", "expected"),
    [
        (GAPS, (11.0, 13.0), (3, 8)),
        (BATCHES, (10.0, 12.0), (8, 15)),
        (BATCHES, (-50.0, -40.0), (0, 100)),
        (GAPS, (900.0, 901.0), (99, 100)),
    ],
)
def test_window(chart: LiveChart, view: tuple[float, float], expected: tuple[int, int]) -> None:
    assert window(chart, made_up(100), ORIGIN_S, view)[:2] == expected
