"""Lets batches of a watched script come late for known causes, and shows what is told of each.

    python -m benchmarks.stalls [KIND ...] [--workers 2] [--times 1]

All kinds of `benchmarks.stall_script` are in one process that `vitprof watch` starts, with a store of
its own: one batch in twelve is late by a second or more. Only batches that other programs make late are in
another one, whose samples need more of a core. A row has the cause that is right, how often it was told,
how often none was, and the last words. A cause that is wrong is marked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.script_run import watch_script
from benchmarks.stall_script import KINDS, late_steps
from vitprof.analysis.timing.late_batches import Cause, Cluster, clustered

RIGHT: dict[str, tuple[Cause, ...]] = {
    "sleep": (Cause.SLEEP,),
    "file": (Cause.FILE,),
    "cold-file": (Cause.FILE,),
    "sync": (Cause.FILE,),
    "lock": (Cause.LOCK,),
    "file-lock": (Cause.FILE_LOCK,),
    "python-lock": (Cause.PYTHON_LOCK,),
    "garbage": (Cause.CPU, Cause.CPU_ALONE),
    "regex": (Cause.CPU, Cause.CPU_ALONE),
    "stop": (Cause.STOPPED,),
    "huge-sample": (Cause.CPU,),
    "zip": (Cause.CPU,),
    "hdf5": (Cause.CPU, Cause.CPU_ALONE),
    "lmdb": (Cause.LOCK,),
    "lmdb-open": (Cause.FILE_LOCK,),
    "thrash": (Cause.MEMORY,),
    "reader-threads": (),
    "sleeping-threads": (),
    "program": (Cause.PROGRAM,),
    "server": (Cause.ELSEWHERE,),
    "names": (Cause.ELSEWHERE,),
    "crowd": (Cause.OTHER_PROGRAMS,),
    "mixed": (),
    "checkpoint": (),
    "save": (),
}
"""The causes that are right; none where no batch is late, or where it does several things."""
CROWD = 8
"""Programs for each core."""
HOG = """
import os, sys, time
while os.getppid() == {parent}:
    if os.path.exists({flag!r}):
        sum(range(100_000))
    else:
        time.sleep(0.02)
"""


@contextlib.contextmanager
def others(flag: Path) -> Iterator[None]:
    """Runs programs that take all cores while a file is there."""
    script = HOG.format(parent=os.getpid(), flag=str(flag))
    n_cores = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(CROWD * n_cores)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def watch(kinds: Sequence[str], workers: int) -> dict[str, Cluster]:
    """Runs these kinds once; returns what is told of each that was looked at. Ends the program with the
    script's errors where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["-m", "benchmarks.stall_script", ",".join(kinds), folder, str(workers)]
        is_crowded = "crowd" in kinds
        crowd = others(Path(folder) / "crowded") if is_crowded else contextlib.nullcontext()
        with crowd:
            run = watch_script(arguments, Path(folder)).run
    fact = run.facts.get("late_batches", {})
    if "not_seen" in fact:
        raise SystemExit(fact["not_seen"])
    late = late_steps(kinds)
    found = {}
    for batch in fact.get("listed", []):
        # A worker that is stopped, or without Python's lock, holds up a batch that it has made before.
        steps = range(batch["step"], batch["step"] + workers + 1)
        kind = next((late[step] for step in steps if step in late), None)
        if kind is None:
            print(f"step {batch['step']}, late by itself: {clustered([batch])[0].reason}")
        else:
            (found[kind],) = clustered([batch])
    return found


def row(kind: str, found: Sequence[Cluster]) -> str:
    """Returns the table's row of a kind, which was looked at so often."""
    right = RIGHT[kind]
    expected = " or ".join(cause.name.lower() for cause in right) or "none"
    causes = [cluster.told.cause for cluster in found]
    n_right = sum(cause in right for cause in causes)
    n_untold = causes.count(Cause.NOT_TOLD)
    wrong = len(causes) - n_right - n_untold
    mark = f"WRONG {wrong} times: " if wrong else ""
    words = found[-1].reason if found else "no batch is late"
    return f"| {kind} | {expected} | {len(found)} | {n_right} | {n_untold} | {mark}{words} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="; ".join(KINDS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    kinds = given.kinds or [*KINDS]
    own = [kind for kind in kinds if kind != "crowd"]
    processes = [own] if own else []
    if "crowd" in kinds:
        processes.append(["crowd"])
    runs = []
    for _ in range(given.times):
        run: dict[str, Cluster] = {}
        for each in processes:
            run |= watch(each, given.workers)
        runs.append(run)
    print("| kind | right | late | told | not told | words |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        print(row(kind, [run[kind] for run in runs if kind in run]))


if __name__ == "__main__":
    main()
