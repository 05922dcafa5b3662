"""Throughput over blocks of neighbouring steps, which are what a bootstrap may draw."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.bootstrap import BOOTSTRAP_BLOCKS, MIN_BLOCKS
from vitprof.analysis.thresholds import MODERATE_FRAC
from vitprof.analysis.timing.steady import steady_state

REGULAR = 0.5
"""Autocorrelation from which steps that are `period` apart are alike for a reason, such as a recurring stall of the
loader. Of 2,000 runs of 400 unrelated steps none had such a peak beyond a block's length (log-normal, exponential, one
in ten stalled; one in 40 stalled: 0.05%; a machine busy in bursts: 0.2%). With a stall every 8th to 64th step of 400,
all had one."""
SURE_SIGMAS = 4.5
"""Standard errors (1 / sqrt(n), for unrelated steps) by which it must also be above 0, which matters for few steps."""
MOST_LONGER = 3.0
"""How far above the median a step counts at most, in medians: the longest stall must not hide the others."""
LEAST_PERIODS = 4
"""Periods that a run must contain for one to be found."""
LEAST_QUEUES = 4
"""Times the change of the loader's queue that a block must contain at least. After the loop was held up it takes from
the queue what was made meanwhile, faster than the loader can go on: over a block of so many steps about 1 / 4 faster
at most. A run that is too short for four such blocks has four all the same, and its score may be further above."""


def period(seconds: Floats) -> int:
    """Returns the number of steps after which step times (n,) repeat, 1 if they do not.

    It is the lag of the highest peak of the autocorrelation after its first dip below 0 (Box and Jenkins, Time Series
    Analysis, chapter 2): a correlation that only fades with the lag is not a period.
    """
    n = len(seconds)
    most = n // LEAST_PERIODS
    if most < 2:
        return 1
    longer = np.clip(seconds / np.median(seconds) - 1, 0, MOST_LONGER)
    longer -= longer.mean()
    spectrum = np.fft.rfft(longer, 2 * n)
    together = np.fft.irfft(spectrum * np.conj(spectrum))[: most + 1]
    if not together[0] > 0:
        return 1
    alike = together / together[0] * n / (n - np.arange(most + 1))
    dips = np.flatnonzero(alike < 0)
    if not len(dips):
        return 1
    first = int(dips[0])
    peak = alike[first:].max()
    lag = first + int(np.argmax(alike[first:] >= 0.9 * peak))  # its multiples are as high, apart from noise
    return lag if peak >= max(REGULAR, SURE_SIGMAS / np.sqrt(n)) else 1


def ahead(queue_depth: Floats) -> int:
    """Returns by how many batches the queue of a loader changed over a run's steps (n,), 0 for a loader without one.

    The lowest and the highest twentieth of the depths do not count, so that a long run may fill its queue once.
    """
    known = queue_depth[np.isfinite(queue_depth)]
    return int(np.ceil(np.quantile(known, 0.95) - np.quantile(known, 0.05))) if len(known) else 0


def block_rates(steps: Series) -> Floats:
    """Returns samples/s of up to 20 blocks of neighbouring steady steps, in order. (n,) float64; empty without steady
    steps.

    `steps` are the (m,) columns of a run's steps. All blocks have the same number of samples, so their harmonic mean is
    samples over time of all steady steps; a step across a border counts in both blocks by its share. If step times
    repeat (a stall with every n-th batch), a block is at least a whole period, and there are fewer blocks; likewise
    where the loader's queue fills and empties (`ahead`), unless the loop waits for data so little that a full queue
    cannot make it clearly faster. With fewer than 20 steady steps of one batch size, each is a block.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    seconds, samples = steps["step_s"][steady], steps["samples"][steady]
    if not len(seconds):
        return np.empty(0)
    n = min(BOOTSTRAP_BLOCKS, len(seconds) // period(seconds))
    if np.nansum(steps["data_wait_s"][steady]) > MODERATE_FRAC * seconds.sum():
        least = max(1, LEAST_QUEUES * ahead(steps["queue_depth"][steady]))
        n = min(n, max(MIN_BLOCKS, len(seconds) // least))
    made, passed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (samples, seconds))
    took = np.diff(np.interp(np.linspace(0, made[-1], n + 1), made, passed))
    return np.asarray(made[-1] / n / took[took > 0], dtype=np.float64)
