"""Throughput over blocks of neighbouring steps, which are what a bootstrap may draw; and early stop by those so far."""

from __future__ import annotations

import math

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
WRONG_STOP_CHANCE = 0.01
"""Chance of cutting short a trial that is as good as the best's lower bound, if its blocks were independent and
alike."""
MIN_BLOCKS_TO_STOP = 20
"""The bound is asymptotic: with fewer blocks its spread is not known well enough."""
WORTH_FULL_TIME_FRAC = 0.05
"""Runs of one setting differ by some percent from one moment of the machine to another, which a single run cannot show;
and what is within 5% of the best is worth its full time."""
EARLIEST_STOP_FRAC = 0.5
"""Share of its budget that a trial always gets: while it warms up it is slower than it will be."""
MIN_GROUPS_OF_FOUR = 2
"""Groups of four that a variance needs."""


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


def usable(blocks: Floats) -> Floats:
    """Returns the blocks that have a rate: finite and above 0."""
    return np.asarray(blocks[np.isfinite(blocks) & (blocks > 0)], dtype=np.float64)


def cannot_win(
    entry_blocks: Floats, best_low: float, *, n_min: int = MIN_BLOCKS_TO_STOP, margin: float = WORTH_FULL_TIME_FRAC
) -> bool:
    """Returns whether a trial can no longer win: its upper 99% bound, and `margin` more, is below `best_low`.

    This must hold for its throughput so far and for that of the later half of its blocks: a trial that gets faster is
    judged by what it has become. Ask only from `EARLIEST_STOP_FRAC` of its budget on.

    `entry_blocks` are samples/s of its blocks so far (`block_rates`), (n,) in order. `best_low` is the lower end of the
    best setting's interval (`LeaderboardRow.within_low`), samples/s, or NaN if there is none yet. False with fewer than
    `n_min` blocks.

    The question is asked repeatedly while a trial runs, and an ordinary bound would be crossed by chance sooner or
    later. This one is the one-sided asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    (Annals of Statistics 2024), tightest at `n_min` blocks. It holds at all times together if blocks are independent
    and alike. The blocks of a run are neither quite. Because neighbours are alike, the spread is the largest of those
    of single blocks, pairs and fours; because of drift there are the later half, `EARLIEST_STOP_FRAC` and `margin`.
    Noise that lasts for a large part of the run can still have a good trial cut.
    """
    blocks = usable(entry_blocks)
    if len(blocks) < max(n_min, MIN_GROUPS_OF_FOUR * 4) or not math.isfinite(best_low):
        return False
    seconds = 1 / blocks
    deviation = math.sqrt(max(variance_of_one(seconds, group) for group in (1, 2, 4)))
    log_alpha = -2 * math.log(2 * WRONG_STOP_CHANCE)
    rho2 = (log_alpha + math.log(log_alpha + 1)) / n_min
    for judged in (seconds, seconds[len(seconds) // 2 :]):
        n = len(judged)
        scale = n * rho2 + 1
        bound = math.sqrt(2 * scale / (n * n * rho2) * math.log(1 + math.sqrt(scale) / (2 * WRONG_STOP_CHANCE)))
        if best_low <= 0 or judged.mean() - deviation * bound <= (1 + margin) / best_low:
            return False
    return True


def without_others(blocks: Floats, others_cores: float) -> Floats:
    """Returns the most samples/s that blocks of a run, (n,), could have had if no other program had run; (n,).

    `others_cores` are the cores that other programs took in the run, on average. If that is less than one, they ran for
    at most that share of the time. If the run was stalled all that while, it needs only the rest of the time alone. The
    result is infinite from a whole core on, and if `others_cores` is not known: then the blocks say nothing about the
    setting.
    """
    left = 1 - max(others_cores, 0.0) if math.isfinite(others_cores) else 0.0
    return blocks / left if left > 0 else np.full(len(blocks), math.inf)


def variance_of_one(values: Floats, group: int) -> float:
    """Returns the variance of a single value, estimated from means of `group` neighbours; larger if neighbours are
    alike.
    """
    means = values[: len(values) // group * group].reshape(-1, group).mean(axis=1)
    return float(means.var(ddof=1)) * group
