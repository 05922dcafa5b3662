"""The points of a session's live charts: those of full groups are computed once, however often a page refreshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.downsample import group_size
from vitprof.charts import LiveChart, Points


@dataclass
class _Drawn:
    key: tuple[int, int, int]
    """Run, first point, group size: if one changes, nothing can be reused."""
    until: int
    """Points before this one are in `points`, in full groups."""
    points: list[Points]


class PointCache:
    """The points of each chart of one session. A refresh computes only the new groups and the last one."""

    def __init__(self) -> None:
        self._drawn: dict[str, _Drawn] = {}

    def points(
        self, chart: LiveChart, run_id: int, series: Series, origin_s: float, view: tuple[float, float] | None
    ) -> list[Points]:
        """Returns the points of `chart`, one `Points` for each trace: of the whole run, or in finer groups of the range
        of x in `view`. `origin_s` is the time that the chart counts from.
        """
        start, stop, groups = window(chart, series, origin_s, view)
        k = group_size(stop - start, groups)
        drawn = self._drawn.get(chart.key)
        if drawn is None or drawn.key != (run_id, start, k) or drawn.until > stop:
            drawn = _Drawn((run_id, start, k), start, chart.build(series, origin_s, start, start, k))
            self._drawn[chart.key] = drawn
        full = stop - (stop - start) % k
        if full > drawn.until:
            drawn.points = _joined(drawn.points, chart.build(series, origin_s, drawn.until, full, k))
            drawn.until = full
        return _joined(drawn.points, chart.build(series, origin_s, full, stop, k))


def _joined(before: Sequence[Points], after: Sequence[Points]) -> list[Points]:
    return [
        Points(
            np.concatenate([a.x, b.x]),
            np.concatenate([a.y, b.y]),
            None if a.text is None or b.text is None else [*a.text, *b.text],
        )
        for a, b in zip(before, after, strict=True)
    ]


def window(chart: LiveChart, series: Series, origin_s: float, view: tuple[float, float] | None) -> tuple[int, int, int]:
    """Returns the points to draw, as (start, stop), and the most groups to draw them in.

    These are all points, or those in view and as much again on either side, so that panning shows something at once.
    """
    n = len(next(iter(series.values())))
    if view is None:
        return 0, n, chart.overview_groups
    margin = view[1] - view[0]
    low, high = view[0] - margin, view[1] + margin
    if chart.x == "index":
        start, stop = int(np.clip(np.floor(low), 0, n)), int(np.clip(np.ceil(high) + 1, 0, n))
    else:
        x = series[chart.x]
        start = max(0, int(np.searchsorted(x, low + origin_s)) - 1)
        stop = int(np.searchsorted(x, high + origin_s, side="right"))
    if stop <= start:  # zoomed to where there are no points
        return 0, n, chart.overview_groups
    return start, stop, chart.max_groups
