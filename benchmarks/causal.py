"""What a causal profile says of stages, beside what they really save: a script whose stages sleep for known times.

    python -m benchmarks.causal [--workers 0 1 2 4] [--steps 3000]

For each number of workers the script runs once below `vitprof watch --causal`, and then without vitprof: as it is, and
with each stage really a quarter faster, and twice as fast, by turns, `ROUNDS` times. A row has the share of a step that
is saved by the profile, with its interval, and by the script's own clock. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests import ROOT
from tests.watch.stages_script import COSTS
from vitprof.analysis.verdict.causal import HALF, QUARTER, CausalProfile, causal_profile

SCRIPT = "tests.watch.stages_script"
ROUNDS = 3
TRUE_STEPS = 600


def environment() -> dict[str, str]:
    # The model is tiny: the threads of PyTorch would wait for each other, busily.
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def step_s(workers: int, *faster: str) -> float:
    """Returns the mean time of a step by the script's own clock."""
    command = [sys.executable, "-m", SCRIPT, str(workers), str(TRUE_STEPS), *faster]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[0])


def profiled(workers: int, steps: int) -> CausalProfile:
    """Returns the causal profile of the script. Ends the program where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "run.json"
        own = {"VITPROF_HOME": folder, "VITPROF_DB": f"sqlite:///{folder}/runs.sqlite"}
        watch = [sys.executable, "-m", "vitprof", "watch", "--causal", "--json", str(told), "--"]
        subprocess.run(
            [*watch, sys.executable, "-m", SCRIPT, str(workers), str(steps)],
            cwd=ROOT,
            env=environment() | own,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        run = json.loads(told.read_text())
    profile = causal_profile(run["facts"], run["environment"])
    if profile is None:
        sys.exit("the run has no causal profile")
    return profile


def true_savings(workers: int) -> dict[tuple[str, float], float]:
    """Returns the share of a step that is saved where a stage is faster: medians over rounds."""
    saved: dict[tuple[str, float], list[float]] = {}
    for _ in range(ROUNDS):
        usual_s = step_s(workers)
        for stage in COSTS:
            for fraction in (QUARTER, HALF):
                left = step_s(workers, stage, str(fraction)) / usual_s
                saved.setdefault((stage, fraction), []).append(1 - left)
    return {cell: median(each) for cell, each in saved.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    for workers in args.workers:
        profile = profiled(workers, args.steps)
        true = true_savings(workers)
        print(f"{workers} workers, {profile.n_rounds} rounds. {profile.why_unknown}")
        for gain in profile.stages:
            for fraction, saved in ((QUARTER, gain.quarter), (HALF, gain.half)):
                truth = true.get((gain.stage, fraction))
                really = "" if truth is None else f"{truth:7.1%} really"
                ends = f"{saved.low:.1%} to {saved.high:.1%}"
                print(
                    f"  {gain.stage:10} {fraction:.0%} faster {saved.value:7.1%} ({ends}) {really}"
                )


if __name__ == "__main__":
    main()
