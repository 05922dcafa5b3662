"""Successive halving: too many settings for the time, of which the best go on after each round.

Jamieson and Talwalkar (AISTATS 2016), figure 1: the best 1/eta of the candidates go on. Thirds are usual
since Hyperband (Li et al., JMLR 2018, section 2).
"""

import math

HALVING_RATE = 3


def rung_sizes(n: int) -> list[int]:
    """Returns how many candidates each rung has: `n`, then a third of the rung before, while more
    than one is left."""
    sizes = [n]
    fewer = math.ceil(n / HALVING_RATE)
    while fewer > 1:
        sizes.append(fewer)
        fewer = math.ceil(fewer / HALVING_RATE)
    return sizes


def first_rung(n: int, runs: int, rounds: int) -> int:
    """Returns how many of `n` candidates, at least two, can start in the time of `runs` equal runs.
    In each rung every candidate left and a baseline run once; the last one is repeated up to
    `rounds` rounds.
    """
    for first in range(n, 2, -1):
        sizes = rung_sizes(first)
        sizes += sizes[-1:] * (rounds - len(sizes))
        if sum(sizes) + len(sizes) <= runs:
            return first
    return min(n, 2)
