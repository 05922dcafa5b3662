"""How often a tournament recommends the right setting: simulated machines with a known truth, the real procedure.

    python -m benchmarks.tournament --seeds 1000

There are five settings, two of them within 1%. A run is 20 blocks. The machines are quiet; noisy (blocks and runs vary
by 3%); drifting (by up to 30%, up and down over four rounds); with fits (other programs slow the machine down by 30 to
60% in 20% of the time, for 12 blocks on average); spoiled (fits, and 15% of all runs are slowed down from beginning to
end); uneven (fits, and blocks of the third fastest setting vary by 8% by themselves). An answer is right if its setting
is within 5% of the fastest.
"""

import argparse
import math
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament.entries import Entry, Outcome
from vitprof.analysis.tournament.leaderboard import Leaderboard, leaderboard
from vitprof.analysis.tournament.recommend import can_be_fastest, recommend
from vitprof.config.bounds import MORE_ROUNDS

SPEEDS = (1000.0, 990.0, 850.0, 600.0, 300.0)
RIGHT = 950.0
MACHINES = ("quiet", "noisy", "drifting", "fits", "spoiled", "uneven")
N_BLOCKS = 20
UNEVEN = 2
"""Index in `SPEEDS` of the setting that is uneven by itself."""


class Machine:
    """A simulated machine that runs settings one after another."""

    def __init__(self, kind: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.kind, self.speeds = kind, self._rng.permutation(SPEEDS)
        self._drift = self._rng.uniform(-0.3, 0.3)
        self._fit: float | None = None
        self._n = 0

    def run(self, setting: int) -> Floats:
        """Returns the samples/s of a run's blocks, (20,)."""
        rng, kind, speed = self._rng, self.kind, self.speeds[setting]
        blocks_sd, runs_sd = {"noisy": (0.03, 0.03)}.get(kind, (0.01, 0.005))
        logs = math.log(speed) + rng.normal(0, runs_sd) + rng.normal(0, blocks_sd, N_BLOCKS)
        if kind == "uneven" and speed == SPEEDS[UNEVEN]:
            own = np.exp(rng.normal(0, 0.08, N_BLOCKS))
            logs += np.log(own * (1 / own).mean())  # keeps its throughput
        if kind == "drifting":
            logs += self._drift * np.sin(
                math.pi * (self._n + np.arange(N_BLOCKS)) / (4 * len(SPEEDS) * N_BLOCKS)
            )
        if kind in ("fits", "spoiled", "uneven"):
            logs += [self._disturbed() for _ in range(N_BLOCKS)]
        if kind == "spoiled" and rng.random() < 0.15:
            logs += math.log(1 - rng.uniform(0.3, 0.6))
        self._n += N_BLOCKS
        return np.exp(logs)

    def _disturbed(self) -> float:
        if self._fit is None and self._rng.random() < 0.02:
            self._fit = math.log(1 - self._rng.uniform(0.3, 0.6))
        elif self._fit is not None and self._rng.random() < 0.08:
            self._fit = None
        return self._fit or 0.0


def tournament(kind: str, seed: int, least: int, more: int) -> tuple[str, float]:
    """Returns a tournament's result (right, wrong or undecided), and the mean number of runs of a setting."""
    machine = Machine(kind, seed)
    runs: dict[str, list[Floats]] = {f"s{k}": [] for k in range(len(SPEEDS))}
    keys = list(runs)
    for number in range(1, least + more + 1):
        if number > least:
            keys = list(can_be_fastest(_board(runs)))
            if not keys:
                break
        first = number % len(keys)
        for key in keys[first:] + keys[:first]:
            runs[key].append(machine.run(int(key[1:])))
    found = recommend(_board(runs))
    n = sum(map(len, runs.values())) / len(runs)
    if found is None or found.key is None:
        return "undecided", n
    return ("right" if machine.speeds[int(found.key[1:])] >= RIGHT else "wrong"), n


def _board(runs: dict[str, list[Floats]]) -> Leaderboard:
    outcomes = {
        key: [Outcome(k, k, "done", b, None) for k, b in enumerate(mine, 1)]
        for key, mine in runs.items()
    }
    return board_of(outcomes, ())


def board_of(runs: Mapping[str, Sequence[Outcome]], cut: Container[str]) -> Leaderboard:
    """Returns the leaderboard of these runs, with the settings in `cut` marked as cut; s0 is the baseline."""
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


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=1000)
    n = asked.parse_args().seeds
    print(
        "| machine | rounds | right | wrong | undecided | runs of a setting |\n|---|---|---|---|---|---|"
    )
    with ProcessPoolExecutor() as pool:
        for kind in MACHINES:
            for least, more in ((2, 0), (3, 0), (3, MORE_ROUNDS)):
                one = partial(tournament, kind, least=least, more=more)
                answers = list(pool.map(one, range(n), chunksize=10))
                said = [answer for answer, _ in answers]
                shares = " | ".join(
                    f"{100 * said.count(w) / n:.1f}%" for w in ("right", "wrong", "undecided")
                )
                rounds = f"{least}, until decided" if more else f"{least}"
                print(
                    f"| {kind} | {rounds} | {shares} | {np.mean([k for _, k in answers]):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
