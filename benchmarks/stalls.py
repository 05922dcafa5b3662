"""Lets batches of a watched script come late for a known cause, and shows what is told of each.

    python -m benchmarks.stalls [KIND ...] [--workers 2]

Each kind of `benchmarks.stall_script` runs as a process that `vitprof watch` starts, with a store of
its own: three batches of seventy are late by a second. A row has the cause that is right, how many
late batches were looked at, and the cause that was told of most of the time. A cause that is wrong is
marked; none is not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.stall_script import KINDS
from tests import ROOT
from vitprof.analysis.timing.late_batches import Cause, LateBatches, late_batches
from vitprof.store import RunStore

RIGHT: dict[str, tuple[Cause, ...]] = {
    "sleep": (Cause.SLEEP,),
    "file": (Cause.FILE,),
    "sync": (Cause.FILE,),
    "lock": (Cause.LOCK,),
    "file-lock": (Cause.FILE_LOCK,),
    "python-lock": (Cause.PYTHON_LOCK,),
    "garbage": (Cause.CPU, Cause.CPU_ALONE),
    "regex": (Cause.CPU, Cause.CPU_ALONE),
    "stop": (Cause.STOPPED,),
    "huge-sample": (Cause.CPU,),
    "zip": (Cause.CPU,),
    "program": (Cause.PROGRAM,),
    "server": (Cause.ELSEWHERE,),
    "crowd": (Cause.OTHER_PROGRAMS,),
    "mixed": (Cause.NOT_TOLD,),
    "checkpoint": (),
}
"""The causes that are right; none where no batch is late."""
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
    hogs = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2 * n_cores)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def watch(kind: str, workers: int) -> LateBatches | None:
    """Runs a kind once; returns what is told. Ends the program with the script's errors where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/runs.sqlite"
        own = {"PYTHONPATH": str(ROOT), "VITPROF_HOME": folder, "VITPROF_DB": database}
        own["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "vitprof", "watch", "--quiet", "--", sys.executable]
        command += ["-m", "benchmarks.stall_script", kind, folder, str(workers)]
        crowd = others(Path(folder) / "crowded") if kind == "crowd" else contextlib.nullcontext()
        with crowd:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"{kind} failed:\n{done.stderr}")
        with contextlib.closing(RunStore(database)) as store:
            (run,) = store.runs()
            if "not_seen" in run.facts.get("late_batches", {}):
                raise SystemExit(run.facts["late_batches"]["not_seen"])
            return late_batches(run.facts)


def row(kind: str, found: LateBatches | None) -> str:
    """Returns the table's row of a kind."""
    right = RIGHT[kind]
    expected = " or ".join(cause.name.lower() for cause in right) or "none is late"
    if found is None:
        return f"| {kind} | {expected} | 0 | none is late |"
    most = found.clusters[0]
    cause = most.told.cause
    mark = "" if cause in (*right, Cause.NOT_TOLD) else "WRONG: "
    return f"| {kind} | {expected} | {found.n} | {mark}{most.reason} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="; ".join(KINDS))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print("| kind | right | late | told |")
    print("|---|---|---|---|")
    for kind in given.kinds or KINDS:
        print(row(kind, watch(kind, given.workers)), flush=True)


if __name__ == "__main__":
    main()
