"""Shows whether the cause that a built-in job is told stays the same while other programs take cores.

    python -m benchmarks.jobs_under_load [--jobs digits photos ...] [--busy 0 1.1] [--threads 1 2] [--runs 3]

Runs jobs of `JOBS` on the CPU, by turns with and without programs that keep so many cores busy, and with so many
threads of PyTorch. The cause that most runs without them were told is taken to be right. A row has what was said of
each run, how often another cause was said, which is wrong, and what the stages waited for cores of their time. "others"
is what programs used that this benchmark did not start: a machine that is not quiet says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.causes_under_load import NOT_TOLD, busy, own_s, used_s
from tests import ROOT

PHOTOS = ("--dataset", "photos", "--n-images", "512", "--batch-size", "16")
JOBS: dict[str, tuple[str, ...]] = {
    "digits": ("--dataset", "digits", "--batch-size", "256"),
    "photos": PHOTOS,
    "photos, not augmented": (*PHOTOS, "--augment", "off"),
    "photos, a worker": (*PHOTOS, "--strategy", "workers", "--workers", "1"),
    "photos, threads": (*PHOTOS, "--strategy", "threads", "--workers", "2"),
}
"""Name of a job -> its arguments; without a strategy it makes batches sample by sample, in the loop."""


@dataclass(frozen=True)
class Outcome:
    """What was said of a run."""

    cause: str
    """The verdict's; where there is none, its kind."""
    is_told: bool
    """Whether that is a part of the job."""
    others_cores: float
    """Cores that programs used which this benchmark did not start."""
    loader_times_frac: float
    stages: Mapping[str, Mapping[str, float]]
    """What is known of the stages (`recording.StageUse`)."""

    @property
    def waits(self) -> str:
        """Returns what each stage waited for cores: its own thread and the others, as shares of its time."""
        shares = [
            f"{name} {use['queued_s'] / use['took_s']:.0%}+{use['threads_queued_s'] / use['took_s']:.0%}"
            for name, use in self.stages.items()
            if use["took_s"] > 0
        ]
        return " ".join(shares)


def outcome(job: str, cores: float, threads: int, steps: int, home: str) -> Outcome:
    """Runs a job once."""
    command = [sys.executable, "-m", "vitprof", "run", "--json", "--no-evaluate", "--anyway"]
    command += ["--device", "cpu", "--threads", str(threads), "--steps", str(steps), *JOBS[job]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VITPROF_HOME": home}
    with busy(cores) as pids:
        began_s = time.perf_counter()
        used_before_s = used_s()
        own_before_s = own_s(pids)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        took_s = time.perf_counter() - began_s
        others_s = used_s() - used_before_s - (own_s(pids) - own_before_s)
    if done.returncode:
        raise SystemExit(f"{job} failed:\n{done.stderr}")
    return of_run(json.loads(done.stdout), others_s / took_s)


def of_run(run: Mapping[str, Any], others_cores: float) -> Outcome:
    verdict = run["verdict"]
    cause = verdict["cause"] if verdict["kind"] != "inconclusive" else ""
    return Outcome(
        cause or verdict["kind"],
        bool(cause) and cause not in NOT_TOLD,
        others_cores,
        float(run["summary"]["loader_times_frac"] or 0.0),
        (run["facts"].get("making") or {}).get("stages") or {},
    )


def rows(
    job: str, busy_cores: list[float], threads: int, runs: int, steps: int, home: str
) -> dict[float, list[Outcome]]:
    """Returns what was said of each run, by the cores that were kept busy."""
    found: dict[float, list[Outcome]] = {cores: [] for cores in busy_cores}
    for _ in range(runs):
        for cores in busy_cores:
            found[cores].append(outcome(job, cores, threads, steps, home))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS)[:3])
    parser.add_argument("--busy", type=float, nargs="+", default=[0, 1.1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--home", help="where data sets are kept for the next time")
    given = parser.parse_args()
    print("| job | busy | threads | others | said | wrong | waits of the last run | measuring |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        home = given.home or folder
        for job in given.jobs:
            for threads in given.threads:
                found = rows(job, given.busy, threads, given.runs, given.steps, home)
                told = Counter(each.cause for each in found[given.busy[0]] if each.is_told)
                right = told.most_common(1)[0][0] if told else ""
                for cores, outcomes in found.items():
                    others = " ".join(f"{each.others_cores:.2f}" for each in outcomes)
                    said = " ".join(each.cause.replace(" ", "-") for each in outcomes)
                    wrong = sum(each.is_told and each.cause != right for each in outcomes)
                    last = outcomes[-1]
                    print(
                        f"| {job} | {cores:g} | {threads} | {others} | {said} | {wrong} | {last.waits} "
                        f"| {last.loader_times_frac:.2%} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
