"""Fewer points for a chart without losing what stands out, in groups that stay the same while a run grows.

Points are grouped by `k` neighbours, `k` a power of two. A full group never changes again, so a live chart only sends
the groups since its last refresh; when `k` doubles it sends everything once. The cost of a refresh depends on what is
new, not on how long the run is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series, column
from vitprof.analysis.timing.steady import begin_s, end_s


def group_size(n: int, max_groups: int) -> int:
    """Returns the smallest power of two that puts `n` points in at most `max_groups` groups."""
    k = 1
    while -(-n // k) > max_groups:
        k *= 2
    return k


def min_max(y: Floats, start: int, stop: int, k: int) -> Ints:
    """Returns the indices of the lowest and the highest point of each group of `y[start:stop]`, in order of time.

    (groups,) int64 for k = 1, else (2 * groups,). A group with only NaN gives its first point twice; NaN is never
    preferred to a number.
    """
    if k == 1 or start >= stop:
        return np.arange(start, stop)
    part = y[start:stop]
    groups = -(-len(part) // k)
    padded = np.full(groups * k, np.nan)
    padded[: len(part)] = part
    table = padded.reshape(groups, k)
    unknown = np.isnan(table)
    low = np.where(unknown, np.inf, table).argmin(axis=1)
    high = np.where(unknown, -np.inf, table).argmax(axis=1)
    pairs = np.sort(np.stack([low, high], axis=1), axis=1)
    return np.asarray((pairs + np.arange(groups)[:, None] * k).ravel() + start, dtype=np.int64)


@dataclass(frozen=True)
class Slices:
    """Groups of steps on the device's time line, without a hole between them.

    All columns are (groups,) float64, but `first_step` and `n_steps` are int64. Each group is other work (an evaluation
    before its first step), then idle time, then busy time. With one step in a group this is what happened. With
    several, the idle times of the group are drawn as one gap, and so are its waits: the shares are exact at every zoom,
    and no gap is lost.
    """

    start_s: Floats
    """End of the previous group's device work, seconds since the run began."""
    other_s: Floats
    """Time that belongs to no step: evaluation, and the moment after the warm-up in which CPU times are read."""
    idle_s: Floats
    busy_s: Floats
    end_s: Floats
    wait_s: Floats
    exposed_wait_s: Floats
    """The part of `wait_s` in the idle time."""
    launch_idle_s: Floats
    """The part of `busy_s` in which the device waited for the next launch; 0 where that is not known."""
    wait_start_s: Floats
    """When the data wait of the group's first step began."""
    first_step: Ints
    n_steps: Ints


def slices(series: Series, origin_s: float, start: int, stop: int, k: int) -> Slices:
    """Returns steps `start` to `stop` of `series` in groups of `k`, in seconds since `origin_s` on the monotonic clock.

    Sums are exact: other + idle + busy of a group is its length.
    """
    edges = np.arange(start, stop, k)
    if not len(edges):
        none = np.empty(0)
        return Slices(none, none, none, none, none, none, none, none, none, edges, edges)
    last = np.minimum(edges + k, stop) - 1
    local = edges - start

    def total(name: str) -> Floats:
        return np.asarray(np.add.reduceat(series[name][start:stop], local))

    def rows(at: Ints) -> Series:
        return {name: values[at] for name, values in series.items()}

    ends_s = end_s(rows(last))
    start_s = np.where(edges > 0, end_s(rows(np.maximum(edges - 1, 0))), begin_s(rows(edges)))
    idle_s, busy_s = total("gap_s"), total("compute_s")
    return Slices(
        start_s=start_s - origin_s,
        other_s=np.maximum(ends_s - start_s - idle_s - busy_s, 0.0),
        idle_s=idle_s,
        busy_s=busy_s,
        end_s=ends_s - origin_s,
        wait_s=total("data_wait_s"),
        exposed_wait_s=total("exposed_wait_s"),
        launch_idle_s=np.add.reduceat(np.nan_to_num(column(series, "launch_idle_s")[start:stop]), local),
        wait_start_s=series["t_start_s"][edges] - origin_s,
        first_step=edges,
        n_steps=last - edges + 1,
    )
