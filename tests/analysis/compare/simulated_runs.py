"""Runs with a known truth: steps whose times are alike to their neighbours', stalls, and noise from run to run."""

import numpy as np

from tests.series import of_columns
from vitprof.analysis.arrays import Series
from vitprof.analysis.compare.guard import CHECKED_STEPS

BATCH = 32
STEP_S = 0.01
RATE = BATCH / STEP_S
"""samples/s of a run of speed 1, on average over all runs."""
IDLE = 0.2
"""Share of the time that the device idles, on average."""


def run(
    rng: np.random.Generator,
    n: int = 200,
    *,
    speed: float = 1.0,
    within: float = 0.1,
    between: float = 0.0,
    alike: float = 0.3,
    stalls: bool = False,
) -> Series:
    """Returns `n` steady steps after five of warm-up. `within`: standard deviation of a step's time, of which a share
    `alike` is passed on to the next step; `between`: of the whole run's; `stalls`: every fourth step waits for all."""
    m = n + 5
    noise = rng.normal(0, within * np.sqrt(1 - alike**2), m)
    for i in range(1, m):
        noise[i] += alike * noise[i - 1]
    noise = np.clip(noise, -0.5, 0.5)  # on both sides alike: the mean stays
    pace = STEP_S / speed * np.exp(rng.normal(0, between))
    step_s = pace * (1 + noise)
    idle = IDLE * (
        1 + (np.where(np.arange(m) % 4, -1.0, 3.0) if stalls else rng.uniform(-0.5, 0.5, m))
    )
    gap_s = pace * idle
    known = {
        "step": np.arange(m),
        "warmup": np.arange(m) < 5,
        "samples": BATCH,
        "t_start_s": np.cumsum(step_s),
    }
    known |= {"step_s": step_s, "gap_s": gap_s, "data_wait_s": gap_s / 2}
    return of_columns(CHECKED_STEPS, m, dict.fromkeys(CHECKED_STEPS, 0.0) | known)
