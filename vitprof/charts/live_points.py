"""The points of live charts for a span of a run, group by group, so that a refresh can send new groups only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.timing.downsample import min_max, slices


@dataclass(frozen=True)
class Points:
    """The points of one trace for some groups; `text` is hover text, one for each point."""

    x: Floats
    y: Floats
    text: Sequence[str] | None = None


Builder = Callable[[Series, float, int, int, int], list[Points]]
"""(series, origin on the monotonic clock, start index, stop index, group size) -> points for each trace."""


def gap_points(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
    """Returns the points of the device, of the loop's waits beneath it, of evaluations, and of launch bubbles."""
    s = slices(series, origin, start, stop, k)
    busy_from = s.end_s - s.busy_s
    other_to = s.start_s + s.other_s
    busy = np.stack([s.start_s, busy_from, s.end_s], axis=1).ravel()
    # A single step's wait is drawn where it happened; those of several in two pieces, exposed and hidden.
    single = s.n_steps == 1
    wait_from = np.where(single, s.wait_start_s, other_to)
    wait_to = wait_from + np.where(single, s.wait_s, s.exposed_wait_s)
    hidden_from = np.where(single, wait_to, busy_from)
    hidden_to = np.where(single, wait_to, np.minimum(busy_from + s.wait_s - s.exposed_wait_s, s.end_s))
    wait = np.stack([wait_from, wait_to, hidden_from, hidden_to], axis=1).ravel()
    other = np.stack([s.start_s, other_to], axis=1).ravel()
    labels = [
        f"step {a:,}" if n == 1 else f"steps {a:,} to {a + n - 1:,}, drawn as one"
        for a, n in zip(s.first_step.tolist(), s.n_steps.tolist(), strict=True)
    ]
    busy_text, wait_text, other_text = [], [], []
    figures = (s.idle_s, s.busy_s, s.wait_s, s.exposed_wait_s, s.other_s)
    for label, idle_s, busy_s, wait_s, exposed_s, other_s in zip(labels, *(f.tolist() for f in figures), strict=True):
        busy_text += [f"{label}<br>device idle {formats.seconds(idle_s)}, busy {formats.seconds(busy_s)}"] * 3
        waited = f"data wait {formats.seconds(wait_s)}, of which exposed {formats.seconds(exposed_s)}"
        wait_text += [f"{label}<br>{waited}"] * 4
        other_text += [f"before {label}<br>other work {formats.seconds(other_s)}" if other_s else ""] * 2
    n = len(labels)
    bubbly = s.launch_idle_s > 0
    bubbles_from = np.maximum(s.end_s - s.launch_idle_s, s.start_s)
    bubbles = np.stack([bubbles_from[bubbly], s.end_s[bubbly]], axis=1).ravel()
    bubbles_text = []
    for at in np.flatnonzero(bubbly).tolist():
        took = f"{formats.seconds(float(s.launch_idle_s[at]))} of {formats.seconds(float(s.busy_s[at]))} busy"
        bubbles_text += [f"{labels[at]}<br>launch bubbles {took}"] * 2
    return [
        Points(busy, np.tile([0.0, 1.0, 0.0], n), busy_text),
        Points(wait, np.tile([1.0, 0.0, 1.0, 0.0], n), wait_text),
        Points(other, np.tile([1.0, 0.0], n), other_text),
        Points(bubbles, np.tile([1.0, 0.0], int(bubbly.sum())), bubbles_text),
    ]


def batch_points(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
    """Returns data wait, copy and compute in milliseconds for the quickest and the slowest step of each group."""
    at = min_max(series["step_s"], start, stop, k)
    x = at.astype(float)
    return [Points(x, series[name][at] * 1e3) for name in ("data_wait_s", "h2d_s", "compute_s")]


def loss_points(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
    """Returns the lowest and the highest loss of each group."""
    at = min_max(series["loss"], start, stop, k)
    return [Points(at.astype(float), series["loss"][at])]


def telemetry_points(*names: tuple[str, float]) -> Builder:
    """Returns a builder that draws these columns of telemetry over time, each multiplied by its scale."""

    def build(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
        points = []
        for name, scale in names:
            at = min_max(series[name], start, stop, k)
            points.append(Points(series["t_s"][at] - origin, series[name][at] * scale))
        return points

    return build
