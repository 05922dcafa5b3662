"""GPU-util: what NVML reports on a device that is busy for half of the time."""

from __future__ import annotations

import math
from statistics import fmean

from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.outcome import Outcome, judged, not_run

BUSY_S, PERIOD_S = 0.03, 0.06
SECONDS = 4.0
SETTLING_S = 1.2
"""Seconds that are left out at the start: NVML's counter looks back for up to a second."""
MOST_OFF_POINTS = 10.0


def half_busy(bench: Bench) -> Outcome:
    """Keeps the device busy for half of each period and compares GPU-util with the share that its own marks give."""
    if bench.utilisation is None:
        return not_run(bench.no_utilisation or "nothing here reads GPU-util")
    device, clock = bench.device, bench.clock
    ask_s = bench.spin(BUSY_S)
    device.synchronize()
    busy_s, since_s, read = 0.0, math.nan, []
    began = due = clock()
    while (now := clock()) - began < SECONDS:
        took = bench.timed(lambda: device.gate(ask_s))
        if now - began >= SETTLING_S:
            since_s = now if math.isnan(since_s) else since_s
            busy_s += took
            read.append(bench.utilisation())
        due += PERIOD_S
        bench.sleep(max(0.0, due - clock()))
    span_s = clock() - since_s
    known = [value for value in read if math.isfinite(value)]
    if not known:
        return not_run("NVML reports no GPU-util for this device")
    busy_pct, util_pct = 100 * busy_s / span_s, fmean(known)
    off = util_pct - busy_pct
    wrong = [] if abs(off) <= MOST_OFF_POINTS else [f"GPU-util is off by {off:+.0f} points"]
    return judged(
        f"GPU-util {util_pct:.0f}%, busy by marks {busy_pct:.0f}%",
        wrong,
        gpu_util_pct=util_pct,
        busy_pct=busy_pct,
        readings_pct=known,
    )
