"""How often early stopping cuts a setting that is as good as the best: simulated machines, the real rules.

    python -m benchmarks.early_stop --seeds 200

It uses the settings and most machines of `benchmarks.tournament`, and also reports the CPU of other programs: a whole
core during a fit or a spoiled run. One more machine is busy: other programs take 1 to 2 cores all the time and slow
each run down by 20 to 70%. There are three rounds, and up to four more until it is decided. A run is 40 blocks; from
half of it on, the runner checks ten times whether the setting can still win. A cut is wrong if the setting is within 5%
of the fastest. `--before` judges blocks as measured, whatever slowed them down, as an earlier version did.
"""

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from benchmarks.tournament import RIGHT, SPEEDS, board_of
from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament.entries import Outcome, Status
from vitprof.analysis.tournament.recommend import can_be_fastest, recommend
from vitprof.analysis.tournament.scores import EARLIEST_STOP_FRAC, cannot_win, without_others
from vitprof.config.bounds import MORE_ROUNDS

MACHINES = ("quiet", "noisy", "drifting", "fits", "spoiled", "busy")
N_BLOCKS = 40
LOOKS = 10
ROUNDS = 3
Judged = Callable[[Floats, float], Floats]


class Machine:
    """A simulated machine that runs settings one after another, beside other programs."""

    def __init__(self, kind: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.kind, self.speeds = kind, self._rng.permutation(SPEEDS)
        self._drift = self._rng.uniform(-0.3, 0.3)
        self._fit = 0.0
        self._n = 0

    def run(self, setting: int) -> tuple[Floats, Floats]:
        """Returns the samples/s of a run's blocks, (40,), and the cores that other programs took meanwhile, (40,)."""
        rng, kind = self._rng, self.kind
        blocks_sd, runs_sd = {"noisy": (0.03, 0.03)}.get(kind, (0.01, 0.005))
        logs = (
            math.log(self.speeds[setting])
            + rng.normal(0, runs_sd)
            + rng.normal(0, blocks_sd * 2**0.5, N_BLOCKS)
        )
        others = np.zeros(N_BLOCKS)
        if kind == "drifting":
            logs += self._drift * np.sin(
                math.pi * (self._n + np.arange(N_BLOCKS)) / (4 * len(SPEEDS) * N_BLOCKS)
            )
        if kind in ("fits", "spoiled"):
            slowed = np.array([self._disturbed() for _ in range(N_BLOCKS)])
            logs, others = logs + slowed, (slowed < 0).astype(float)
        if kind == "busy" or (kind == "spoiled" and rng.random() < 0.15):
            logs += math.log(
                1 - (rng.uniform(0.2, 0.7) if kind == "busy" else rng.uniform(0.3, 0.6))
            )
            others[:] = rng.uniform(1, 2)
        self._n += N_BLOCKS
        return np.exp(logs), others

    def _disturbed(self) -> float:
        if not self._fit and self._rng.random() < 0.01:
            self._fit = math.log(1 - self._rng.uniform(0.3, 0.6))
        elif self._fit and self._rng.random() < 0.04:
            self._fit = 0.0
        return self._fit


def tournament(kind: str, seed: int, judged: Judged | None) -> tuple[str, bool, float]:
    """Returns a tournament's result (right, wrong or undecided), whether a setting was wrongly cut, and the mean number
    of runs of a setting.

    `judged` returns the throughputs by which to judge a setting, from a run's blocks and the cores that other programs
    took; None: no early stopping.
    """
    machine = Machine(kind, seed)
    runs: dict[str, list[Outcome]] = {f"s{k}": [] for k in range(len(SPEEDS))}
    keys, cut, made = list(runs), set[str](), 0.0
    for number in range(1, ROUNDS + MORE_ROUNDS + 1):
        if number > ROUNDS:
            keys = list(can_be_fastest(board_of(runs, cut)))
            if not keys:
                break
        first = number % len(keys)
        for key in (k for k in keys[first:] + keys[:first] if k not in cut):
            blocks, others = machine.run(int(key[1:]))
            n = (
                0
                if judged is None or key == "s0"
                else _cut_after(runs, cut, key, blocks, others, judged)
            )
            if n:
                cut.add(key)
            if n != 1:  # else it did not begin
                n = n or N_BLOCKS
                status: Status = "cut" if key in cut else "done"
                runs[key].append(
                    Outcome(
                        number, number, status, _pairs(blocks[:n]), None, _cores(blocks, others, n)
                    )
                )
                made += n / N_BLOCKS
    found = recommend(board_of(runs, cut))
    bad = any(machine.speeds[int(key[1:])] >= RIGHT for key in cut)
    if found is None or found.key is None:
        return "undecided", bad, made / len(runs)
    return (
        ("right" if machine.speeds[int(found.key[1:])] >= RIGHT else "wrong"),
        bad,
        made / len(runs),
    )


def _cut_after(
    runs: dict[str, list[Outcome]],
    cut: set[str],
    key: str,
    blocks: Floats,
    others: Floats,
    judged: Judged,
) -> int:
    """Returns the number of blocks after which the run is cut; 1: it does not begin, 0: it runs to its end."""
    best = next((row for row in board_of(runs, cut).rows if row.rank is not None), None)
    if best is None or best.key == key:
        return 0
    earlier = np.concatenate(
        [np.empty(0), *(judged(o.blocks_per_s, o.others_cores) for o in runs[key])]
    )
    if cannot_win(earlier, best.within_low):
        return 1
    for n in np.linspace(EARLIEST_STOP_FRAC * N_BLOCKS, N_BLOCKS, LOOKS, endpoint=False).astype(
        int
    ):
        so_far = judged(blocks[:n], _cores(blocks, others, int(n)))
        if cannot_win(np.concatenate([earlier, so_far]), best.within_low):
            return int(n)
    return 0


def _cores(blocks: Floats, others: Floats, n: int) -> float:
    """Returns the mean number of cores that other programs took during the first `n` blocks."""
    return float((others / blocks)[:n].sum() / (1 / blocks)[:n].sum())


def _pairs(blocks: Floats) -> Floats:
    """Returns the samples/s of each pair of blocks."""
    return np.asarray(2 / (1 / blocks)[: len(blocks) // 2 * 2].reshape(-1, 2).sum(axis=1))


def _as_it_was(blocks: Floats, others_cores: float) -> Floats:
    return blocks


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=200)
    asked.add_argument(
        "--before", action="store_true", help="judge blocks whatever slowed them down"
    )
    given = asked.parse_args()
    print("| machine | early stop | wrongly cut | right | wrong | undecided | runs of a setting |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for kind in MACHINES:
            for judged in (_as_it_was,) if given.before else (None, without_others):
                one = partial(tournament, kind, judged=judged)
                answers = list(pool.map(one, range(given.seeds), chunksize=5))
                said = [answer for answer, _, _ in answers]
                shares = " | ".join(
                    f"{100 * said.count(w) / len(said):.1f}%"
                    for w in ("right", "wrong", "undecided")
                )
                bad = f"{100 * np.mean([b for _, b, _ in answers]):.1f}%" if judged else ""
                n = np.mean([k for _, _, k in answers])
                print(
                    f"| {kind} | {'on' if judged else 'off'} | {bad} | {shares} | {n:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
