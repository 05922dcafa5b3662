"""Early stop: a trial that can no longer win need not run to its end."""

from __future__ import annotations

import math

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament.scores import usable

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
