"""When a setting is cut short in a tournament: it can no longer win, whatever other programs did
meanwhile."""

import math

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.intervals import variance_of_one
from vitprof.analysis.tournament.blocks import usable

WRONG_STOP_CHANCE = 0.01
"""Chance of cutting short a trial that is as good as the best's lower bound, if its blocks were
independent and alike."""
MIN_BLOCKS_TO_STOP = 20
"""The bound is asymptotic: with fewer blocks its spread is not known well enough."""
WORTH_FULL_TIME_FRAC = 0.05
"""Runs of one setting differ by some percent from one moment of the machine to another, which a
single run cannot show; and what is within 5% of the best is worth its full time."""
EARLIEST_STOP_FRAC = 0.5
"""Share of its budget that a trial always gets: while it warms up it is slower than it will be."""


def cannot_win(entry_blocks: Floats, best_low: float) -> bool:
    """Returns whether a trial can no longer win: its upper 99% bound, and `WORTH_FULL_TIME_FRAC`
    more, is below `best_low`, the lower end of the best setting's interval
    (`LeaderboardRow.within_low`); False while that is NaN, or with too few blocks.

    `entry_blocks` are samples/s of its undisturbed blocks so far (`alone_at_most`), (n,) in order:
    the same blocks as its figure is made of. The bound must hold for those and for the later half
    of them: a trial that gets faster is judged by what it has become. Ask only from
    `EARLIEST_STOP_FRAC` of its budget on. As the question is asked repeatedly, the bound is the
    one-sided asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    (Annals of Statistics 2024). It assumes blocks that are independent and alike: because
    neighbours are alike, the spread is the largest of those of single blocks, pairs and fours.
    Noise that lasts for a large part of the run can still have a good trial cut.
    """
    blocks = usable(entry_blocks)
    if len(blocks) < MIN_BLOCKS_TO_STOP or not math.isfinite(best_low) or best_low <= 0:
        return False
    seconds = 1 / blocks
    deviation = math.sqrt(max(variance_of_one(seconds, group) for group in (1, 2, 4)))
    log_alpha = -2 * math.log(2 * WRONG_STOP_CHANCE)
    rho2 = (log_alpha + math.log(log_alpha + 1)) / MIN_BLOCKS_TO_STOP
    longest = (1 + WORTH_FULL_TIME_FRAC) / best_low
    for judged in (seconds, seconds[len(seconds) // 2 :]):
        n = len(judged)
        scale = n * rho2 + 1
        spread = math.log(1 + math.sqrt(scale) / (2 * WRONG_STOP_CHANCE))
        bound = math.sqrt(2 * scale / (n * n * rho2) * spread)
        if judged.mean() - deviation * bound <= longest:
            return False
    return True


def alone_at_most(blocks_per_s: Floats, others_cores: Floats, disturbed: np.ndarray) -> Floats:
    """Returns the most samples/s that a run's undisturbed blocks could have had alone, if the run
    stood still whenever another program took a core: 1 / 0.8 times as fast beside 0.2 cores.
    Without those of which it is not known who else ran: they are no evidence against a setting.
    """
    known = np.isfinite(others_cores) & ~disturbed
    left = 1 - np.clip(others_cores[known], 0.0, None)
    return usable(np.where(left > 0, blocks_per_s[known] / np.where(left > 0, left, 1.0), np.inf))
