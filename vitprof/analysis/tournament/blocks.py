"""From steps to blocks: throughput over spans of neighbouring steps, which are what a bootstrap may draw."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.bootstrap import BOOTSTRAP_BLOCKS
from vitprof.analysis.timing.steady import steady_state

REGULAR = 0.5
"""Autocorrelation from which steps that are `period` apart are alike for a reason: a stall of the loader that comes
again. Of 2,000 runs of 400 unrelated steps none had such a peak behind a block's length (log-normal, exponential, one
in ten stalled; one in 40 stalled: 0.05%; a machine busy in fits: 0.2%). With stalls of every 8th to 64th step of 400
all had."""
SURE_SIGMAS = 4.5
"""Standard errors (1 / sqrt(n), for unrelated steps) that it must be above 0 besides, where steps are few."""
MOST_LONGER = 3.0
"""Times the median from which one step is as long as another: the longest stall must not hide the others."""
LEAST_PERIODS = 4
"""Periods that a run must hold for one to be seen."""


def period(seconds: Floats) -> int:
    """Returns after how many steps their times (n,) come again, 1 where they do not.

    It is the lag of the highest peak of the autocorrelation behind its first dip below 0 (Box and Jenkins, Time Series
    Analysis, chapter 2): what only fades away with the lag is no period.
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
    lag = first + int(np.argmax(alike[first:] >= 0.9 * peak))  # its multiples are as high, but for noise
    return lag if peak >= max(REGULAR, SURE_SIGMAS / np.sqrt(n)) else 1


def block_rates(steps: Series) -> Floats:
    """samples/s of up to 20 blocks of neighbouring steady steps, in order. (n,) float64; empty without steady steps.

    `steps` are the (m,) columns of a run's steps. All blocks have the same number of samples, so that their harmonic
    mean is samples over time of all steady steps; a step that lies across a border counts for both by its share. Where
    step times come again (a stall with every n-th batch) a block is a whole period at least, of which there are fewer.
    With fewer than 20 steady steps of one batch size each is a block.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    seconds, samples = steps["step_s"][steady], steps["samples"][steady]
    if not len(seconds):
        return np.empty(0)
    n = min(BOOTSTRAP_BLOCKS, len(seconds) // period(seconds))
    made, passed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (samples, seconds))
    took = np.diff(np.interp(np.linspace(0, made[-1], n + 1), made, passed))
    return np.asarray(made[-1] / n / took[took > 0], dtype=np.float64)
