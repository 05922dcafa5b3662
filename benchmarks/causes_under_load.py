"""Shows whether the cause that a watched script is told stays the same while other programs take cores.

    python -m benchmarks.causes_under_load [--kinds resize decode ...] [--busy 0 0.3 ...] [--threads 1 2] [--steps 60]

Runs scripts of known cause (`benchmarks.causes_script`) below `vitprof watch` while programs keep so many cores busy,
and with so many threads of PyTorch. A row has what was said: the cause that is right on a quiet machine, that it is not
clear, or another one, which is wrong. "machine" is what all programs used meanwhile by /proc/stat, "others" what
programs did that this benchmark did not start: a machine that is not quiet says so. A busy program of 0.3 spins for
30 ms and sleeps for 70, pinned to no core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.script_run import watch_script
from vitprof.analysis.timing.loading import heaviest, transform_times
from vitprof.recording.verdict import Verdict

PERIOD_S = 0.1
SPIN = f"""
import sys, time
frac = float(sys.argv[1])
while True:
    end_s = time.perf_counter() + frac * {PERIOD_S}
    while time.perf_counter() < end_s:
        pass
    time.sleep((1 - frac) * {PERIOD_S})
"""
RIGHT = {
    "resize": ("transform", "Resize"),
    "decode": ("read", ""),
    "collate": ("collate", ""),
    "drive": ("read", ""),
    "handing": ("hand_over", ""),
}
"""Kind of script -> its cause and the heaviest transform on a quiet machine; "" where that is not the cause."""
NOT_TOLD = ("unclear", "cpu_contention", "")
"""Causes that name no part of the script."""


@contextmanager
def busy(cores: float) -> Iterator[list[int]]:
    """Keeps so many cores busy meanwhile. Gives the ids of the programs that do."""
    fracs = [1.0] * int(cores)
    if cores % 1:
        fracs.append(cores % 1)
    programs = [subprocess.Popen([sys.executable, "-c", SPIN, str(frac)]) for frac in fracs]
    try:
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def used_s() -> float:
    """Returns the CPU time of all programs so far, by /proc/stat."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _, _, *interrupts = map(int, stat.readline().split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def own_s(pids: list[int]) -> float:
    """Returns the CPU time so far of this process's ended children and of some programs."""
    times = os.times()
    spent_s = times.children_user + times.children_system + times.user + times.system
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent_s


@dataclass(frozen=True)
class Outcome:
    """What was said of a run."""

    verdict: Verdict
    transform: str
    """The transform that is named as the heaviest; "" for none."""
    advice: str
    machine_cores: float
    """Cores that all programs used meanwhile."""
    others_cores: float
    """Cores that programs used which this benchmark did not start."""
    spent: str
    """The shares by the script's own clocks."""

    def judged(self, kind: str) -> str:
        """Returns right, none or WRONG."""
        cause, transform = RIGHT[kind]
        said = self.verdict.cause if self.verdict.is_conclusive else ""
        names_another = bool(transform) and self.transform not in ("", transform)
        if said not in (*NOT_TOLD, cause) or names_another:
            return "WRONG"
        return "none" if said in NOT_TOLD else "right"


def outcome(kind: str, cores: float, threads: int, steps: int) -> Outcome:
    """Runs a script once."""
    arguments = ["-m", "benchmarks.causes_script", kind, str(threads), str(steps)]
    with tempfile.TemporaryDirectory() as folder, busy(cores) as pids:
        began_s = time.perf_counter()
        used_before_s = used_s()
        own_before_s = own_s(pids)
        left = watch_script(arguments, Path(folder), threads=threads)
        took_s = time.perf_counter() - began_s
        machine_s = used_s() - used_before_s
        others_s = machine_s - (own_s(pids) - own_before_s)
    verdict = left.run.verdict
    if verdict is None:
        raise SystemExit(f"{kind} has no verdict")
    most = heaviest(transform_times(left.run.facts))
    advice = verdict.advice[0].words if verdict.advice else ""
    transform = "" if most is None else most.name
    spent = left.printed.strip().splitlines()[-1]
    return Outcome(verdict, transform, advice, machine_s / took_s, others_s / took_s, spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=list(RIGHT), default=list(RIGHT))
    parser.add_argument("--busy", type=float, nargs="+", default=[0, 0.3, 0.65, 1.1, 2])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    print(
        "| script | busy | threads | machine | others | said | heaviest | judged | first advice | own clocks |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        for threads in given.threads:
            for cores in given.busy:
                done = outcome(kind, cores, threads, given.steps)
                why_none = done.verdict.why_none
                said = done.verdict.cause or done.verdict.kind
                if why_none is not None:
                    said = why_none.reason
                print(
                    f"| {kind} | {cores:g} | {threads} | {done.machine_cores:.2f} | {done.others_cores:.2f} | {said} "
                    f"| {done.transform or '-'} | {done.judged(kind)} | {done.advice} | {done.spent} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
