"""How often a tournament recommends the right setting, and how true the ratios are that it shows.

Machines with a known truth are simulated; the procedure is the real one.

    python -m benchmarks.tournament --seeds 1000

There are five settings, two of them within 1%. A run is 40 blocks. The machines:

quiet; noisy: blocks vary by 4%, runs by 3%; drifting: by up to 30%, up and down over four rounds;
fits: other programs slow the machine down by 30 to 60% in 20% of the time, for 24 blocks on
average;
short fits: the same share of the time, two blocks each;
spoiled: fits, and 15% of all runs are slowed down from beginning to end;
uneven: fits, and blocks of the third fastest setting vary by 11% by themselves;
heavy-tailed: a quarter of the third fastest setting's blocks, at random, take five times as long
as the others, which are far faster than those of all other settings;
moody: the third fastest setting's runs vary by 8%, all of a run alike;
busy: other programs take 1 to 2 cores all the time and slow each run down by 20 to 70%.

A program that disturbs takes a core or more, as telemetry reports it, to 0.06 cores.

An answer is right if its setting is within 5% of the fastest. The bias is that of the ratio shown,
against the truth: the mean over the tournaments, of the setting for which it is largest; relative
to the setting that is truly fastest. Covered: how often the interval of the speed-up over the
fastest setting holds the truth.
"""

import argparse
import math
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.entries import Entry, RunOutcome, Status
from vitprof.analysis.tournament.leaderboard import Leaderboard, leaderboard
from vitprof.analysis.tournament.recommend import can_be_fastest, recommend
from vitprof.config.bounds import MORE_ROUNDS

SPEEDS = (1000.0, 990.0, 850.0, 600.0, 300.0)
RIGHT = 950.0
MACHINES = (
    "quiet",
    "noisy",
    "drifting",
    "fits",
    "short fits",
    "spoiled",
    "uneven",
    "heavy-tailed",
    "moody",
    "busy",
)
N_BLOCKS = 40
THIRD = 2
"""Index in `SPEEDS` of the setting that is uneven, heavy-tailed or moody."""
TELEMETRY_ERROR = 0.06
"""Cores by which telemetry is off in a block of half a second."""
LONG_FIT = (0.01, 0.04)
SHORT_FIT = (0.125, 0.5)
"""Chances that a fit begins with a block, and that it ends with one: of the time they take 20%."""
FITS = {"fits": LONG_FIT, "spoiled": LONG_FIT, "uneven": LONG_FIT, "short fits": SHORT_FIT}


@dataclass(frozen=True)
class Run:
    """What a run showed."""

    blocks_per_s: Floats
    """(40,) samples/s."""
    others_cores: Floats
    """(40,) cores that other programs took."""

    def first(self, n: int) -> "Run":
        return Run(self.blocks_per_s[:n], self.others_cores[:n])

    def outcome(self, number: int, status: Status = "done") -> RunOutcome:
        seconds = 1 / self.blocks_per_s
        return RunOutcome(
            number,
            number,
            status,
            self.blocks_per_s,
            None,
            float((self.others_cores * seconds).sum() / seconds.sum()),
            block_others_cores=self.others_cores,
            disturbed=self.others_cores >= OTHERS_CORES,
        )


class Machine:
    """A simulated machine that runs settings one after another."""

    def __init__(self, kind: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.kind = kind
        self.speeds = self._rng.permutation(SPEEDS)
        self._drift = self._rng.uniform(-0.3, 0.3)
        self._fit = 0.0
        self._n = 0

    def run(self, setting: int) -> Run:
        rng = self._rng
        blocks_sd, runs_sd = (0.04, 0.03) if self.kind == "noisy" else (0.014, 0.005)
        logs = rng.normal(0, runs_sd) + rng.normal(0, blocks_sd, N_BLOCKS)
        logs += math.log(self.speeds[setting])
        if self.speeds[setting] == SPEEDS[THIRD]:
            logs += self._by_itself()
        if self.kind == "drifting":
            at = (self._n + np.arange(N_BLOCKS)) / (4 * len(SPEEDS) * N_BLOCKS)
            logs += self._drift * np.sin(math.pi * at)
        slowed = np.zeros(N_BLOCKS)
        others = np.zeros(N_BLOCKS)
        if self.kind in FITS:
            slowed = np.array([self._disturbed(*FITS[self.kind]) for _ in range(N_BLOCKS)])
            others = (slowed < 0).astype(float)
        if self.kind == "spoiled" and rng.random() < 0.15:
            slowed = slowed + math.log(1 - rng.uniform(0.3, 0.6))
            others[:] = rng.uniform(1, 2)
        if self.kind == "busy":
            slowed = np.full(N_BLOCKS, math.log(1 - rng.uniform(0.2, 0.7)))
            others[:] = rng.uniform(1, 2)
        self._n += N_BLOCKS
        seen = others + rng.normal(0, TELEMETRY_ERROR, N_BLOCKS)
        return Run(np.exp(logs + slowed), seen)

    def _by_itself(self) -> Floats:
        """Returns how much faster blocks of the third fastest setting are, on logarithms; on
        average not at all."""
        if self.kind == "uneven":
            times = np.exp(self._rng.normal(0, 0.11, N_BLOCKS))
            return _of_mean_time_1(times, math.exp(0.11**2 / 2))
        if self.kind == "heavy-tailed":
            return _of_mean_time_1(np.where(self._rng.random(N_BLOCKS) < 0.25, 5.0, 1.0), 2.0)
        if self.kind == "moody":
            return np.full(N_BLOCKS, self._rng.normal(0, 0.08))
        return np.zeros(N_BLOCKS)

    def _disturbed(self, begins: float, ends: float) -> float:
        if not self._fit and self._rng.random() < begins:
            self._fit = math.log(1 - self._rng.uniform(0.3, 0.6))
        elif self._fit and self._rng.random() < ends:
            self._fit = 0.0
        return self._fit


def _of_mean_time_1(times: Floats, mean: float) -> Floats:
    return np.asarray(np.log(mean / times))


@dataclass(frozen=True)
class Result:
    """What a tournament found."""

    answer: str
    """right, wrong or undecided."""
    n_runs: float
    """Mean number of runs of a setting."""
    off: tuple[float, ...]
    """By how much the logarithms of the ratios shown were off, by the settings' true order from the
    second on."""
    covered: tuple[bool, ...]
    """For each setting but the baseline with an interval, whether that holds its true speed-up."""


def tournament(kind: str, seed: int, least: int, more: int) -> Result:
    machine = Machine(kind, seed)
    runs: dict[str, list[RunOutcome]] = {f"s{k}": [] for k in range(len(SPEEDS))}
    keys = list(runs)
    for number in range(1, least + more + 1):
        if number > least:
            keys = list(can_be_fastest(board_of(runs, ())))
            if not keys:
                break
        first = number % len(keys)
        for key in keys[first:] + keys[:first]:
            runs[key].append(machine.run(int(key[1:])).outcome(number))
    board = board_of(runs, ())
    n = sum(map(len, runs.values())) / len(runs)
    return Result(answer_of(board, machine), n, _off(board, machine), _covered(board, machine))


def answer_of(board: Leaderboard, machine: Machine) -> str:
    found = recommend(board)
    if found is None or found.key is None:
        return "undecided"
    return "right" if machine.speeds[int(found.key[1:])] >= RIGHT else "wrong"


def _off(board: Leaderboard, machine: Machine) -> tuple[float, ...]:
    shown = {machine.speeds[int(row.key[1:])]: row.speed_up for row in board.rows}
    fastest = SPEEDS[0]
    return tuple(math.log(shown[s] / shown[fastest] / (s / fastest)) for s in SPEEDS[1:])


def _covered(board: Leaderboard, machine: Machine) -> tuple[bool, ...]:
    held = []
    for row in board.rows:
        truth = machine.speeds[int(row.key[1:])] / machine.speeds[0]
        if row.key != "s0" and math.isfinite(row.speed_up_low):
            held.append(bool(row.speed_up_low <= truth <= row.speed_up_high))
    return tuple(held)


def board_of(runs: Mapping[str, Sequence[RunOutcome]], cut: Container[str]) -> Leaderboard:
    """Returns the leaderboard of these runs, with the settings in `cut` marked as cut; s0 is the
    baseline."""
    entries = [
        Entry(
            key=key,
            strategy=key,
            batch_size=32,
            workers=None,
            page_cache="as-is",
            outcomes=tuple(mine),
            status="cut" if key in cut else "done",
            reason="",
            prepare_s=0.0,
            disk_bytes=0.0,
            ram_bytes=0.0,
        )
        for key, mine in runs.items()
    ]
    return leaderboard(entries, baseline="s0", n_train=0)


@dataclass(frozen=True)
class Line:
    """What many tournaments on one kind of machine found."""

    n: int
    right: float
    wrong: float
    undecided: float
    bias: float
    """Mean error of the ratio shown, of the setting for which it is largest; signed, as a share."""
    covered: float
    n_runs: float


def line_of(results: Sequence[Result]) -> Line:
    said = [result.answer for result in results]
    bias = np.nanmean(np.array([result.off for result in results]), axis=0)
    held = [each for result in results for each in result.covered]
    return Line(
        n=len(results),
        right=said.count("right") / len(said),
        wrong=said.count("wrong") / len(said),
        undecided=said.count("undecided") / len(said),
        bias=math.expm1(float(bias[np.argmax(np.abs(bias))])),
        covered=float(np.mean(held)) if held else math.nan,
        n_runs=float(np.mean([result.n_runs for result in results])),
    )


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=1000)
    asked.add_argument("--processes", type=int, default=None)
    asked.add_argument("--until-decided", action="store_true", help="leave out fixed rounds")
    asked.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES)
    given = asked.parse_args()
    print("| machine | rounds | right | wrong | undecided | bias | covered | runs of a setting |")
    print("|---|---|---|---|---|---|---|---|")
    plans = [(3, MORE_ROUNDS)] if given.until_decided else [(2, 0), (3, 0), (3, MORE_ROUNDS)]
    with ProcessPoolExecutor(given.processes) as pool:
        for kind in given.machines:
            for least, more in plans:
                one = partial(tournament, kind, least=least, more=more)
                line = line_of(list(pool.map(one, range(given.seeds), chunksize=10)))
                rounds = f"{least}, until decided" if more else f"{least}"
                print(
                    f"| {kind} | {rounds} | {line.right:.1%} | {line.wrong:.1%} | "
                    f"{line.undecided:.1%} | {line.bias:+.1%} | {line.covered:.1%} | "
                    f"{line.n_runs:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
