"""The rule for "A was faster than B while other programs ran", and by how much at least.

Rounds that other programs disturbed are no part of a firm ratio (`analysis.faster`). Beside a
program that never ends no round is left, and the firm answer is "undecided". A setting that was
several times as fast in every one of those rounds is worth saying all the same. What is said is a
lower bound for the machine as it was then. It says nothing of a quiet machine: there both settings
have more cores, and one may gain more by that than the other.

**A pair** is a run of each setting in one round, on one machine. Its ratio is that of all samples
over all time, disturbed or not: leaving out the slower part would favour one of them. A pair counts
if other programs ran in both of its runs alike (`Pair.is_alike`). That is seen in what they used,
never in how fast the runs were.

**What others may have taken from B** does not count for A: they may have been busier in B's turn by
chance. B cannot have lost more time than its threads waited for a core: without that it is
1 / (1 - waited) times as fast. And it cannot have lost more, against A's turn, than the cores that
others left it less: with 0.9 of 2 cores left to B and 1.5 to A it is at most 1.5 / 0.9 times as fast.
B is taken to be faster by the less of the two. Where it waited a tenth of the time, a ratio of 3.2
counts as 2.9. The first bound always holds; the second where B keeps no more threads busy than A.
What threads lose by shared caches is in neither. What is left is chance, which meets both settings
alike, as they take turns.

**The bound** is the smallest ratio of all pairs, or the lower end of the 95% interval of their mean
on logarithms (Student's t), whichever is less. Two settings that are as fast take the lead in a
round by chance: with four pairs all of them point the same way in 1 of 16 cases, and all of them by
a quarter in far fewer. A later round cannot bring back a lead that one pair has not shown, so more
looks give chance no more room.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis import arrays, faster, students_t, thresholds

WhileBusy = Literal["faster while busy"]
WHILE_BUSY: WhileBusy = "faster while busy"
"""The outcome of this rule. A firm one (`faster.Relation`) always wins over it."""
Outcome = faster.Relation | WhileBusy
"""How a setting compares with another one."""

LEAST_PAIRS = 4
"""Pairs below which nothing is said. Of three, all point the same way by chance in 1 of 8 cases."""
LEAST_TIMES = 1 / (1 - thresholds.INPUT_BOUND_FRAC)
"""The bound from which a setting is called faster: 1.25, the same gain as an input-bound run has at
least. In 12,000 simulated tournaments in which a setting was no faster, it was never called that
(`benchmarks.while_busy`)."""
ALIKE_FRAC = 0.25
"""Share of the cores that others used in one run of a pair which they must have used in the other.
Beside five threads in place of one a program still has a third of what it had (CFS and EEVDF share
cores evenly)."""
LEAST_LEFT_FRAC = 0.02
"""Share of the machine that others leave at least, where figures are divided by it: what they used
and what the machine has are read a moment apart."""


@dataclass(frozen=True, slots=True)
class BusyRun:
    """A whole run of a setting, and what other programs did meanwhile."""

    per_s: float
    """All samples over all time, whether other programs disturbed it or not."""
    n_steps: int
    """Steady steps behind that."""
    others_cores: float
    """CPU cores that other programs used meanwhile, on average; NaN where that is not known."""
    cores: float
    """Cores of the machine, all of which the job might use; NaN where it had a part of them: who
    else used that part is not known."""
    node: str = ""
    """The machine."""
    waited: float = math.nan
    """Threads of the job that were ready to run and had no core, on average; NaN where that was not
    counted."""

    @property
    def is_known(self) -> bool:
        """Returns whether there is a speed, and it is known who else ran."""
        enough = self.n_steps >= arrays.MIN_BLOCKS and self.per_s > 0
        return enough and math.isfinite(self.others_cores) and math.isfinite(self.cores)

    @property
    def left_cores(self) -> float:
        """Returns the cores that other programs left."""
        taken = max(0.0, self.others_cores)
        return max(self.cores - taken, LEAST_LEFT_FRAC * self.cores)

    @property
    def without_waits(self) -> float:
        """Returns how many times as fast it would be at most if its threads always had a core;
        infinite where they waited all the time together, or that is not known."""
        return 1 / (1 - self.waited) if self.waited < 1 else math.inf


@dataclass(frozen=True, slots=True)
class Pair:
    """A run of the setting that may be faster, and one of the other in the same round."""

    fast: BusyRun
    slow: BusyRun

    @property
    def is_alike(self) -> bool:
        """Returns whether other programs ran in both runs, or next to none in either."""
        if self.fast.node != self.slow.node or self.fast.cores != self.slow.cores:
            return False
        least, most = sorted((self.fast.others_cores, self.slow.others_cores))
        return most - least < thresholds.OTHERS_CORES or least >= ALIKE_FRAC * most

    @property
    def times(self) -> float:
        """Returns how many times as fast the first one was, without what others may have taken from
        the second."""
        more_left = max(1.0, self.fast.left_cores / self.slow.left_cores)
        taken = min(more_left, max(1.0, self.slow.without_waits))
        return self.fast.per_s / self.slow.per_s / taken


@dataclass(frozen=True, slots=True)
class AtLeast:
    """How many times as fast a setting was at least, while other programs ran."""

    times: float
    """The bound."""
    n_rounds: int
    """Rounds behind it: in each of them it was faster by that, and more."""
    others_cores: float
    """CPU cores that other programs used in these rounds, on average."""
    cores: float
    """Cores of the machine; of the largest one, where there were several."""

    @property
    def words(self) -> str:
        """Returns "at least 1.87x"."""
        return at_least_words(self.times)

    @property
    def others_words(self) -> str:
        """Returns "while other programs used 1.1 of 2 cores"."""
        return f"while other programs used {self.others_cores:.1f} of {self.cores:g} cores"


def at_least_words(times: float) -> str:
    """Returns a bound as "at least 1.87x", or 3.1x, or 12x: rounded down, so that it is still one."""
    decimals = 0
    if times < 10:
        decimals = 2 if times < 2 else 1
    # what is 3.1 but for rounding stays 3.1
    rounded = math.floor(times * 10**decimals + 1e-9) / 10**decimals
    return f"at least {rounded:.{decimals}f}x"


def at_least(fast: Mapping[int, BusyRun], slow: Mapping[int, BusyRun]) -> AtLeast | None:
    """Returns how many times as fast one setting was than another, at least; None where that is not
    sure, or next to no other programs ran.

    `fast`, `slow`: round -> run of the setting that may be faster, and of the other one.
    """
    alike = [pair for pair in _known_pairs(fast, slow) if pair.is_alike]
    if len(alike) < LEAST_PAIRS or not _enough_steps(alike):
        return None
    times = _bound([pair.times for pair in alike])
    runs = list(itertools.chain.from_iterable((pair.fast, pair.slow) for pair in alike))
    others_cores = math.fsum(run.others_cores for run in runs) / len(runs)
    if times < LEAST_TIMES or others_cores < thresholds.OTHERS_CORES:
        return None
    return AtLeast(times, len(alike), others_cores, max(run.cores for run in runs))


def is_to_come(fast: Mapping[int, BusyRun], slow: Mapping[int, BusyRun]) -> bool:
    """Returns whether more rounds while other programs run are needed before anything can be said of
    two settings; False where there are enough, or it is not known who else ran.

    `fast`, `slow`: as of `at_least`.
    """
    pairs = _known_pairs(fast, slow)
    n_alike = sum(pair.is_alike for pair in pairs)
    return bool(pairs) and n_alike < LEAST_PAIRS


def _known_pairs(fast: Mapping[int, BusyRun], slow: Mapping[int, BusyRun]) -> list[Pair]:
    """Returns the runs of both settings in a round, by round, where it is known who else ran."""
    return [
        Pair(fast[number], slow[number])
        for number in sorted(fast.keys() & slow.keys())
        if fast[number].is_known and slow[number].is_known
    ]


def _enough_steps(pairs: Sequence[Pair]) -> bool:
    """Returns whether both settings made as many steps as an interval needs."""
    of_fast = sum(pair.fast.n_steps for pair in pairs)
    of_slow = sum(pair.slow.n_steps for pair in pairs)
    return min(of_fast, of_slow) >= thresholds.MIN_STEPS


def _bound(times: Sequence[float]) -> float:
    """Returns the smallest of these ratios, or the lower end of the 95% interval of their mean if
    that is less."""
    logs = np.log(np.array(times))
    n = len(logs)
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    low = float(logs.mean()) - students_t.quantile(students_t.TWO_SIDED_95, n - 1) * error
    return math.exp(min(low, float(logs.min())))
