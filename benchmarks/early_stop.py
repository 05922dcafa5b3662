"""How often early stopping cuts a setting that is as good as the best: simulated machines, the real
rules.

    python -m benchmarks.early_stop --seeds 200

It uses the settings and machines of `benchmarks.tournament`. There are three rounds, and up to
seven more until it is decided. From half of a run on, the runner checks ten times whether the
setting can still win. A cut is wrong if the setting is within 5% of the fastest.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.tournament import N_BLOCKS, RIGHT, SPEEDS, Machine, Run, answer_of, board_of
from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament.early_stop import EARLIEST_STOP_FRAC, alone_at_most, cannot_win
from vitprof.analysis.tournament.entries import RunOutcome
from vitprof.analysis.tournament.recommend import can_be_fastest
from vitprof.config.bounds import MORE_ROUNDS

MACHINES = ("quiet", "noisy", "drifting", "fits", "spoiled", "heavy-tailed", "busy")
LOOKS = 10
ROUNDS = 3
NEVER = 0
NOT_BEGUN = -1
Runs = dict[str, list[RunOutcome]]


@dataclass(frozen=True)
class Result:
    """What a tournament found."""

    answer: str
    """right, wrong or undecided."""
    wrongly_cut: bool
    """Whether a setting was cut that is within 5% of the fastest."""
    n_runs: float
    """Mean number of runs of a setting; one that was cut counts with its share."""


def tournament(kind: str, seed: int, *, stops: bool) -> Result:
    machine = Machine(kind, seed)
    runs: Runs = {f"s{k}": [] for k in range(len(SPEEDS))}
    keys = list(runs)
    cut = set[str]()
    made = 0.0
    for number in range(1, ROUNDS + MORE_ROUNDS + 1):
        if number > ROUNDS:
            keys = list(can_be_fastest(board_of(runs, cut)))
            if not keys:
                break
        first = number % len(keys)
        for key in keys[first:] + keys[:first]:
            if key in cut:
                continue
            run = machine.run(int(key[1:]))
            n = NEVER
            if stops and key != "s0":
                n = _cut_after(runs, cut, key, run)
            if n != NEVER:
                cut.add(key)
            if n == NOT_BEGUN:
                continue
            whole = run if n == NEVER else run.first(n)
            runs[key].append(whole.outcome(number, "cut" if key in cut else "done"))
            made += len(whole.blocks_per_s) / N_BLOCKS
    wrongly_cut = any(machine.speeds[int(key[1:])] >= RIGHT for key in cut)
    return Result(answer_of(board_of(runs, cut), machine), wrongly_cut, made / len(runs))


def _cut_after(runs: Runs, cut: set[str], key: str, run: Run) -> int:
    """Returns the number of blocks after which the run is cut; `NEVER`, or `NOT_BEGUN`."""
    best = next((row for row in board_of(runs, cut).rows if row.rank is not None), None)
    if best is None or best.key == key:
        return NEVER
    earlier = np.concatenate([np.empty(0), *map(_evidence, runs[key])])
    if cannot_win(earlier, best.within_low):
        return NOT_BEGUN
    looks = np.linspace(EARLIEST_STOP_FRAC * N_BLOCKS, N_BLOCKS, LOOKS, endpoint=False)
    for n in map(int, looks):
        so_far = _evidence(run.first(n).outcome(0))
        if cannot_win(np.concatenate([earlier, so_far]), best.within_low):
            return n
    return NEVER


def _evidence(run: RunOutcome) -> Floats:
    return alone_at_most(run.blocks_per_s, run.block_others_cores, run.disturbed)


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=200)
    asked.add_argument("--processes", type=int, default=None)
    given = asked.parse_args()
    print("| machine | early stop | wrongly cut | right | wrong | undecided | runs of a setting |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(given.processes) as pool:
        for kind in MACHINES:
            for stops in (False, True):
                one = partial(tournament, kind, stops=stops)
                results = list(pool.map(one, range(given.seeds), chunksize=5))
                said = [result.answer for result in results]
                shares = " | ".join(
                    f"{said.count(word) / len(said):.1%}"
                    for word in ("right", "wrong", "undecided")
                )
                bad = f"{np.mean([r.wrongly_cut for r in results]):.1%}" if stops else ""
                n = np.mean([result.n_runs for result in results])
                switch = "on" if stops else "off"
                print(f"| {kind} | {switch} | {bad} | {shares} | {n:.2f} |", flush=True)


if __name__ == "__main__":
    main()
