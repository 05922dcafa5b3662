"""Clock mapping: marks on the device must become the right times on the host's clock."""

from __future__ import annotations

import numpy as np

from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.outcome import Outcome, judged

MARKS = 1000
APART_S = 0.003
"""Seconds between marks: they take over 3 s, so that the device's clock is anchored again and its drift shows."""
MOST_OUTSIDE_S = 50e-6
"""How far outside its bracket a mark may be mapped: the anchor's own bracket is about 20 us wide, and clocks drift."""
MOST_DRIFT_S = 20e-6
"""The most drift for each second. Each clock's crystal is right within about 10 us a second."""


def clock_mapping(bench: Bench) -> Outcome:
    """Sets marks on an idle device, each between two readings of the host's clock, and maps all of them at the end.

    They are mapped at the end so that the mapping cannot rely on the time at which a mark is read.
    """
    device = bench.device
    brackets, marks = [], []
    for _ in range(MARKS):
        bench.sleep(APART_S)
        before = bench.clock()
        mark = device.mark()
        device.wait(mark)
        brackets.append((before, bench.clock()))
        marks.append(mark)
    at = np.array([device.seconds(mark) for mark in marks])
    device.release(*marks)
    before_s, after_s = np.array(brackets).T
    outside_s = np.maximum(np.maximum(before_s - at, at - after_s), 0.0)
    drift = float(np.polyfit(at - at[0], at - (before_s + after_s) / 2, 1)[0])
    wrong = []
    n_outside = int((outside_s > MOST_OUTSIDE_S).sum())
    if n_outside:
        wrong.append(f"{n_outside} marks lie outside, the farthest by {outside_s.max() * 1e6:.0f} µs")
    if not abs(drift) <= MOST_DRIFT_S:
        wrong.append(f"the clocks drift apart by {drift * 1e6:+.1f} µs a second")
    if not (np.diff(at) > 0).all():
        wrong.append("a later mark was mapped to an earlier time")
    return judged(
        f"{MARKS - n_outside} of {MARKS} inside, at most {outside_s.max() * 1e6:.0f} µs outside; "
        f"drift {drift * 1e6:+.1f} µs a second",
        wrong,
        marks=MARKS,
        outside_most_us=float(outside_s.max()) * 1e6,
        bracket_median_us=float(np.median(after_s - before_s)) * 1e6,
        drift_us_per_s=drift * 1e6,
    )
