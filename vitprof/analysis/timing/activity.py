"""What the device did in three kinds: it computed, it waited for data, or neither.

For pictures that are read from afar, where more kinds would say less. Waiting for data is what a
verdict counts as such: data waits, those with which epochs begin, and copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series, median
from vitprof.analysis.timing.gaps import CAUSES, IDLE_CAUSES, WAITS, find_gaps
from vitprof.analysis.timing.steady import training
from vitprof.analysis.timing.timeline import KINDS, group_size, slices, timeline
from vitprof.recording.columns import Phase

ACTIVITIES: tuple[str, ...] = ("compute", "data", "other")
LENGTHS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)
"""How long a stretch may be: lengths that an axis has round ticks for."""
USUAL_S = 0.2
LEAST_STEPS = 6
"""Steps of the slower run that a stretch should have: fewer show no rhythm."""
MOST_STEPS = 80
"""Steps of the faster run that a stretch should have at most: more are stripes too narrow to see."""
LEAST_APART = 1e-3
"""Share of a stretch that may belong to no step: what rounding leaves."""
CANDIDATES = 2_000
"""Stretches that are looked at to find a typical one."""


@dataclass(frozen=True)
class Stretch:
    """A part of a run, (m,) spans one after another, in seconds since it begins."""

    kind: Ints
    """Index into `ACTIVITIES`."""
    start_s: Floats
    end_s: Floats
    length_s: float


@dataclass(frozen=True)
class Strip:
    """A whole run in columns, (n,), in seconds since its first step began."""

    start_s: Floats
    end_s: Floats
    shares: Floats
    """(3, n) the shares of a column by `ACTIVITIES`; they add up to 1."""


def whole_run(steps: Series, *, columns: int = 160) -> Strip:
    """Returns a run in at most so many columns of neighbouring steps, none without device times."""
    timed = np.isfinite(steps["compute_start_s"] + steps["compute_s"])
    known = {name: values[timed] for name, values in steps.items()}
    n = len(known["step"])
    s = slices(known, 0.0, 0, n, group_size(n, columns))
    length_s = np.maximum(s.end_s - s.start_s, 1e-9)
    computes = np.clip(s.busy_s / length_s, 0, 1)
    waits_s = s.causes_s[[IDLE_CAUSES.index(cause) for cause in WAITS]].sum(axis=0)
    waits = np.clip(waits_s / length_s, 0, 1 - computes)
    shares = np.stack([computes, waits, 1 - computes - waits])
    begin_s = s.start_s[:1].sum()
    return Strip(s.start_s - begin_s, s.end_s - begin_s, shares)


def stretch_length(runs: Sequence[Series]) -> float:
    """Returns how long a stretch of each of these runs should be, in seconds; NaN if one has no
    device times.

    That is 200 ms, unless it has too few steps of the slowest or too many of the fastest run.
    """
    steps_s = []
    longest_s = np.inf
    for steps in runs:
        took_s = steps["step_s"][training(steps)]
        steps_s.append(median(took_s))
        longest_s = min(longest_s, float(np.nansum(took_s)))
    least_s = LEAST_STEPS * max(steps_s)
    if not np.isfinite(least_s):
        return float("nan")
    most_s = max(MOST_STEPS * min(steps_s), least_s)
    wanted_s = min(max(USUAL_S, least_s), most_s, longest_s)
    # The longest of the round lengths that is at most as long.
    at = max(int(np.searchsorted(LENGTHS_S, wanted_s * (1 + 1e-9), side="right")) - 1, 0)
    if at + 1 < len(LENGTHS_S) and LENGTHS_S[at] < least_s <= LENGTHS_S[at + 1] <= longest_s:
        at += 1
    return LENGTHS_S[at]


def typical_stretch(steps: Series, phases: Sequence[Phase], length_s: float) -> Stretch | None:
    """Returns the stretch of this length in which the device waits for data as much as in the
    whole training, after the warm-up and without an evaluation.

    None if the run has none.
    """
    gaps = find_gaps(steps, phases)
    if not len(gaps.index):
        return None
    ends_s = (gaps.end_ns + gaps.compute_ns - gaps.prepare_ns) / 1e9
    data_s = gaps.causes_ns[:, [CAUSES.index(cause) for cause in WAITS]].sum(axis=1) / 1e9
    span_of_s = gaps.idle_s + gaps.compute_ns / 1e9
    # What belongs to no step: evaluations, and a pause of the recorder.
    apart_s = np.diff(ends_s, prepend=ends_s[0] - span_of_s[0]) - span_of_s
    trained = training(steps)[gaps.index]
    span_s = span_of_s[trained].sum()
    if not span_s > 0:
        return None
    usual = data_s[trained].sum() / span_s
    # A stretch begins where a step ends, so that it begins with a gap.
    begins = np.flatnonzero(trained[1:] & (ends_s[:-1] + length_s <= ends_s[-1] + 1e-9))
    begins = begins[:: max(len(begins) // CANDIDATES, 1)]

    def within(seconds: Floats) -> Floats:
        total_s = np.cumsum(seconds)
        return np.interp(ends_s[begins] + length_s, ends_s, total_s) - total_s[begins]

    begins = begins[within(apart_s) <= LEAST_APART * length_s]
    if not len(begins):
        return None
    shares = within(data_s) / length_s
    at = int(begins[np.argmin(np.abs(shares - usual))])
    begin_s = float(ends_s[at])
    last = int(np.searchsorted(ends_s, begin_s + length_s))
    first = int(gaps.index[at])
    stop = int(gaps.index[min(last, len(ends_s) - 1)]) + 1
    line = timeline(steps, phases, first, stop).only("device")
    order = np.argsort(line.start_s, kind="stable")
    start_s = np.clip(line.start_s[order] - begin_s, 0, length_s)
    end_s = np.clip(line.end_s[order] - begin_s, 0, length_s)
    kind = OF_KINDS[line.kind[order]]
    shown = end_s > start_s
    return Stretch(kind[shown], start_s[shown], end_s[shown], length_s)


def _activity(kind: str) -> int:
    if kind in WAITS:
        return ACTIVITIES.index("data")
    return ACTIVITIES.index("compute" if kind == "compute" else "other")


OF_KINDS = np.array([_activity(kind) for kind in KINDS])
"""Index of a kind of a `Timeline` -> that of its activity."""
