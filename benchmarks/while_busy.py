"""How often "faster while other programs ran" is wrong, how often it is said, and how far its bound
is below the truth.

Machines with a known truth are simulated; the procedure is the real one.

    python -m benchmarks.while_busy --seeds 1000

Two settings run by turns on two cores, ten rounds of 8 s. The cores are shared evenly among all
threads that want one (CFS and EEVDF). The kinds of settings, by threads and the cores that they use
alone:

alike: one thread each;
more workers: the first has three threads that use two cores, the other one thread;
fewer workers: the other way round;
waits more: four threads of the first use 0.6 cores, as with a slow drive; the other has one that
computes. It loses less to other programs, so its lead is larger beside them than without.

Other programs use 0.3, 1.1 or 2 cores where they get them. In half of the tournaments they never
stop. In the others they run in fits: 40 to 90% of the time, a fit lasts 0.5 to 40 s on average.
Blocks vary by 4%, and runs by 1%, 5% or 15%, all of a run alike. "turns" is the worst case: other
programs run whenever the second setting does, and hardly beside the first.

The truth is the ratio of the mean speeds that both settings have beside these programs, had they run
as long as they did in all rounds so far together. It is not that of a quiet machine, which is the
column "quiet".
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from vitprof.analysis.arrays import Floats, Mask
from vitprof.analysis.faster_while_busy import at_least
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.blocks import WAITED_FRAC, whole_runs_of
from vitprof.analysis.tournament.entries import Entry, RunOutcome
from vitprof.analysis.tournament.leaderboard import LeaderboardRow, leaderboard

CORES = 2.0
LOOKS = (4, 6, 10)
"""Rounds after which somebody looks: the fewest that say something, all rounds that are run again, and
all until it is decided."""
RUN_S = 8.0
STEP_S = 0.1
BETWEEN_S = 1.5
"""Time from a run to the next, which starts a process."""
N_BLOCKS = 20
BLOCKS_SD = 0.04
RUNS_SD = (0.01, 0.05, 0.15)
ON_FRAC = (0.4, 0.9)
"""Share of the time that other programs run where they do so in fits."""
FIT_S = (0.5, 40.0)
TELEMETRY_ERROR = 0.06
"""Cores by which telemetry is off in a block of half a second."""
WAITS_ERROR = 0.02
"""Threads by which a run's mean of those that wait for a core is off."""
HARDLY = 0.1
"""Share of what other programs use beside the second setting that they use beside the first, in the
worst case."""
RATIOS = (1.0, 1.1, 1.5, 3.0)
OTHERS = (0.3, 1.1, 2.0)


@dataclass(frozen=True)
class Setting:
    """What a setting needs of the machine."""

    threads: int
    cores: float
    """That its threads use together if nothing else runs."""


ONE = Setting(1, 1.0)
WORKERS = Setting(3, 2.0)
WAITS = Setting(4, 0.6)
KINDS = {
    "alike": (ONE, ONE),
    "more workers": (WORKERS, ONE),
    "fewer workers": (ONE, WORKERS),
    "waits more": (WAITS, ONE),
    "turns": (ONE, ONE),
}
"""Kind -> the setting that may be faster, and the other one."""


@dataclass(frozen=True)
class Share:
    """Who has how much of the machine while other programs run."""

    job: float
    """Cores of the job."""
    others: float
    full: bool
    """Whether more is wanted than there is, so that somebody waits."""
    waited: float
    """Threads of the job that wait for a core, on average: a thread that has half of what it wants
    waits half of the time."""


def shared(job: Setting, others: float) -> Share:
    """Returns how the cores are shared: each thread has the same, but none more than it wants."""
    if job.cores + others <= CORES:
        return Share(job.cores, others, full=False, waited=0.0)
    n_others = math.ceil(others)
    wants = [(job.cores / job.threads, job.threads), (others / n_others, n_others)]
    least, least_n = min(wants)
    most_n = job.threads + n_others - least_n
    each_of_most = CORES / (least_n + most_n)
    if least < each_of_most:
        each_of_most = (CORES - least * least_n) / most_n
    of_job = job.threads * min(wants[0][0], each_of_most)
    waited = job.threads * (1 - of_job / job.cores)
    return Share(of_job, CORES - of_job, full=True, waited=waited)


class Machine:
    """A simulated machine with other programs, on which two settings run one after another."""

    def __init__(self, kind: str, ratio: float, others: float, seed: int) -> None:
        self._rng = np.random.default_rng(
            [seed, *kind.encode(), round(10 * ratio), round(10 * others)]
        )
        self.kind = kind
        self.per_s = (1000.0 * ratio, 1000.0)
        self.others = others
        self.on_frac = 1.0
        self._fit_s = math.inf
        if self._rng.random() < 0.5 and kind != "turns":
            self.on_frac = self._rng.uniform(*ON_FRAC)
            self._fit_s = math.exp(self._rng.uniform(*np.log(FIT_S)))
        self._runs_sd = float(self._rng.choice(RUNS_SD))
        self._on = bool(self._rng.random() < self.on_frac)
        self._ran: list[float] = []
        """Share of each run so far in which the other programs ran."""

    @property
    def truth(self) -> float:
        """Returns how many times as fast the first setting is beside the other programs as they came
        and went in the runs so far."""
        if self.kind == "turns":
            return self.per_s[0] / self.per_s[1]
        on_frac = float(np.mean(self._ran))
        return self._mean_per_s(0, on_frac) / self._mean_per_s(1, on_frac)

    def _mean_per_s(self, which: int, on_frac: float) -> float:
        setting = KINDS[self.kind][which]
        beside = shared(setting, self.others).job / setting.cores
        return self.per_s[which] * (on_frac * beside + 1 - on_frac)

    def run(self, which: int, number: int) -> RunOutcome:
        rng = self._rng
        setting = KINDS[self.kind][which]
        others = self.others
        if self.kind == "turns" and which == 0:
            others *= HARDLY
        share = shared(setting, others)
        on = self._comes_and_goes(round((RUN_S + BETWEEN_S) / STEP_S))[: round(RUN_S / STEP_S)]
        self._ran.append(float(on.mean()))
        of_run = rng.normal(0, self._runs_sd)
        noise = np.repeat(rng.normal(0, BLOCKS_SD, N_BLOCKS), len(on) // N_BLOCKS)
        per_s = self.per_s[which] * np.where(on, share.job / setting.cores, 1.0)
        per_s = per_s * np.exp(of_run + noise)
        made = np.concatenate([[0.0], np.cumsum(per_s * STEP_S)])
        at = np.interp(np.linspace(0, made[-1], N_BLOCKS + 1), made, np.arange(len(made)))
        of_block = _means(np.where(on, share.others, 0.0), at)
        of_block = of_block + rng.normal(0, TELEMETRY_ERROR, N_BLOCKS)
        waited = _means((on & share.full).astype(float), at)
        samples = float(made[-1]) / N_BLOCKS
        seconds = np.diff(at) * STEP_S
        return RunOutcome(
            number,
            number,
            "done",
            samples / seconds,
            None,
            float((of_block * seconds).sum() / seconds.sum()),
            block_samples=samples,
            block_others_cores=of_block,
            disturbed=(of_block >= OTHERS_CORES) & (waited >= WAITED_FRAC),
            cores=CORES,
            waited=max(0.0, share.waited * float(on.mean()) + rng.normal(0, WAITS_ERROR)),
        )

    def _comes_and_goes(self, n: int) -> Mask:
        """Returns when the other programs run, (n,) by steps, and goes on from there next time."""
        if math.isinf(self._fit_s):
            return np.ones(n, dtype=bool)
        ends = min(1.0, STEP_S / self._fit_s)
        begins = min(1.0, ends * self.on_frac / (1 - self.on_frac))
        draws = self._rng.random(n)
        on = np.empty(n, dtype=bool)
        for i in range(n):
            self._on = bool(draws[i] >= ends) if self._on else bool(draws[i] < begins)
            on[i] = self._on
        return on


def _means(values: Floats, at: Floats) -> Floats:
    """Returns the mean of a run's values (n,) between the edges `at`, in steps."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(np.diff(np.interp(at, np.arange(len(sums)), sums)) / np.diff(at))


@dataclass(frozen=True)
class Result:
    """What a tournament of two settings found, by `LOOKS`."""

    truths: tuple[float, ...]
    """How many times as fast the first one was beside the other programs."""
    bounds: tuple[float, ...]
    """How many times as fast the first one was at least; NaN where that was not said."""
    firm: bool
    """Whether a firm answer was there after all rounds."""

    @property
    def false(self) -> bool:
        """Returns whether it was said at any look although the first one was no faster."""
        looks = zip(self.bounds, self.truths, strict=True)
        return any(math.isfinite(bound) and truth <= 1 for bound, truth in looks)


def played(kind: str, ratio: float, others: float, seed: int) -> Result:
    machine = Machine(kind, ratio, others, seed)
    runs: tuple[list[RunOutcome], list[RunOutcome]] = ([], [])
    bounds = []
    truths = []
    for number in range(1, LOOKS[-1] + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            runs[which].append(machine.run(which, number))
        if number in LOOKS:
            bounds.append(_bound(*runs))
            truths.append(machine.truth)
    firm = row_of(*runs).against_baseline in ("faster", "slower", "equal")
    return Result(tuple(truths), tuple(bounds), firm)


def _bound(fast: Sequence[RunOutcome], slow: Sequence[RunOutcome]) -> float:
    """Returns how many times as fast the first setting is said to be at least; NaN where it is not
    said. The leaderboard, which takes longer, is asked only where it may say it."""
    runs = (whole_runs_of(entry) for entry in _entries(fast, slow))
    if at_least(*runs) is None:
        return math.nan
    found = row_of(fast, slow).while_busy
    return math.nan if found is None else found.times


def _entries(fast: Sequence[RunOutcome], slow: Sequence[RunOutcome]) -> list[Entry]:
    return [
        Entry(key, key, 32, None, "as-is", tuple(runs), "done", "", 0.0, 0.0, 0.0)
        for key, runs in (("fast", fast), ("slow", slow))
    ]


def row_of(fast: Sequence[RunOutcome], slow: Sequence[RunOutcome]) -> LeaderboardRow:
    """Returns the row of a setting with these runs, against a baseline with those."""
    row = leaderboard(_entries(fast, slow), baseline="slow", n_train=0).row("fast")
    assert row is not None
    return row


@dataclass(frozen=True)
class Line:
    """What many tournaments of one kind found."""

    n: int
    truth: float
    """Median of the true ratios."""
    firm: float
    said: float
    """Share in which it was said after all rounds."""
    false: float
    """Share in which it was said at any look although the first one was no faster."""
    above: float
    """Share in which the bound after all rounds was above the truth."""
    bound: float
    """Median of the bounds after all rounds, as a share of the truth; NaN where none was said."""


def line_of(results: Sequence[Result]) -> Line:
    at_the_end = [result.bounds[-1] / result.truths[-1] for result in results]
    known = [share for share in at_the_end if math.isfinite(share)]
    n = len(results)
    return Line(
        n=n,
        truth=float(np.median([result.truths[-1] for result in results])),
        firm=sum(result.firm for result in results) / n,
        said=len(known) / n,
        false=sum(result.false for result in results) / n,
        above=sum(share > 1 for share in known) / n,
        bound=float(np.median(known)) if known else math.nan,
    )


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=1000)
    asked.add_argument("--processes", type=int, default=None)
    asked.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked.add_argument("--others", nargs="+", type=float, choices=OTHERS, default=OTHERS)
    given = asked.parse_args()
    print("| settings | others | quiet | true | firm | said | false | above the truth | bound |")
    print("|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(given.processes) as pool:
        for kind, others, ratio in itertools.product(given.kinds, given.others, RATIOS):
            one = partial(played, kind, ratio, others)
            line = line_of(list(pool.map(one, range(given.seeds), chunksize=20)))
            bound = f"{line.bound:.2f}" if math.isfinite(line.bound) else ""
            print(
                f"| {kind} | {others:g} | {ratio:g} | {line.truth:.2f} | {line.firm:.1%} | "
                f"{line.said:.1%} | {line.false:.1%} | {line.above:.1%} | {bound} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
