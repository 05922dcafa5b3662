"""What two runs say of each other, in one sentence: which is faster, by how much, and how far to
trust that.
"""

import math
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis import faster
from vitprof.analysis.arrays import Interval
from vitprof.analysis.compare.guard import Trust
from vitprof.analysis.faster_while_busy import at_least_words
from vitprof.formats import number

Basis = Literal["alternating, quiet", "alternating, busy", "alternating"] | Trust
"""What a ratio rests on: runs that took turns, on a quiet machine, on a busy one or on one of which
that is not known; else two single runs, and how far these can be trusted."""
LABELS: dict[Basis, str] = {
    "alternating, quiet": "ran alternately on a quiet machine",
    "alternating, busy": "ran alternately while other programs ran",
    "alternating": "ran alternately",
    "fair": "single runs, one after the other",
    "disturbed": "other programs ran",
    "other conditions": "conditions differed",
    "unlike": "not alike",
}
"""How far a ratio can be trusted, in a few words."""
CLOSE = 0.1
"""A ratio this close to 1 is shown with three decimals: "1.00x faster" would contradict itself."""


@dataclass(frozen=True)
class Answer:
    """How much faster one of two runs is than the other."""

    fast: int
    """Number of the run with the higher speed."""
    slow: int
    ratio: Interval
    """Its speed over the other's, 1 or more, with its 95% interval. A bound where `at_least`: its upper
    end is not known."""
    basis: Basis
    """What that rests on."""
    at_least: bool = False
    """Whether it was faster by so much at least in all rounds, but other programs ran in them
    (`analysis.faster_while_busy`)."""

    @property
    def is_faster(self) -> bool:
        """Returns whether it is decided which of the two is faster, firmly or while other programs
        ran."""
        comparable = self.basis != "unlike"
        return comparable and (self.at_least or faster.relation(self.ratio) == "faster")

    @property
    def sentence(self) -> str:
        """Returns it in words, without what it rests on."""
        fast = f"run {self.fast}"
        slow = f"run {self.slow}"
        if self.basis == "unlike":
            both = f"{min(self.fast, self.slow)} and {max(self.fast, self.slow)}"
            return f"Runs {both} are not alike, so neither speed is a gain over the other."
        if self.at_least:
            return f"{fast.capitalize()} was {at_least_words(self.ratio.low)} as fast as {slow}."
        times = f"{ratio_in_words(self.ratio.value)}x"
        if not math.isfinite(self.ratio.low):
            known = "how far chance may change that is not known"
            return f"{fast.capitalize()} was {times} as fast as {slow}; {known}."
        ends = f"{ratio_in_words(self.ratio.low)} to {ratio_in_words(self.ratio.high)}"
        interval = f"(95%: {ends})"
        relation = faster.relation(self.ratio)
        if relation == "equal":
            return (
                f"{fast.capitalize()} and {slow} are equally fast, within 5%: {times} {interval}."
            )
        if relation == "faster":
            return f"{fast.capitalize()} is {times} faster than {slow} {interval}."
        return f"Which is faster is undecided: {fast} was {times} as fast as {slow} {interval}."


def ratio_in_words(ratio: float) -> str:
    return f"{ratio:.3f}" if abs(ratio - 1) < CLOSE else number(ratio)


def answer(
    base: int, other: int, ratio: Interval, basis: Basis, *, at_least: bool = False
) -> Answer:
    """Returns the answer of two runs: `ratio` is the speed of `other` over that of `base`. `at_least`:
    it is a bound, while other programs ran."""
    if ratio.value >= 1 or not ratio.value > 0:
        return Answer(other, base, ratio, basis, at_least)
    most = math.inf if at_least else 1 / ratio.low
    turned = Interval(1 / ratio.value, 1 / ratio.high, most)
    return Answer(base, other, turned, basis, at_least)
