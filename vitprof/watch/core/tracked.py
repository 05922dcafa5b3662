"""What the script's own experiment tracker is told live: sums over the steps since the last time."""

from __future__ import annotations

from typing import Any

from vitprof.measure.step_columns import Columns

SUMMED = ("samples", "step_s", "data_wait_s", "exposed_wait_s", "gap_s")


def tracked(steps: Columns) -> dict[str, Any]:
    """Returns the sums of some columns over the steps without those of the warm-up, how many these are,
    and the number of the last one; an empty object where there are none."""
    counted = steps["warmup"] == 0
    if not counted.any():
        return {}
    sums = {name: float(steps[name][counted].sum()) for name in SUMMED}
    return {"sums": sums, "n": int(counted.sum()), "step": int(steps["step"][-1])}
