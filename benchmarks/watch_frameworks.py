"""Watches training by frameworks and by hand, each beside a timer of its own: the table of docs/watching.md.

    python -m benchmarks.watch_frameworks [NAME ...] [--runs 3]

Each recipe of `tests.watch.recipes` runs as a process that `vitprof watch` starts, with a store of its own. A row has
the steps that vitprof found of those that the recipe's timer counted, the share of the time that they waited for data
by both, and their difference in percentage points, as medians and ranges of the runs. A difference of more than two
points is marked, unless vitprof says in its verdict that it cannot tell. Frameworks that are not installed are left
out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.script_run import watch_script
from tests.watch.recipes import BY_HAND, FRAMEWORKS, N_STEPS, SKIPPED

MOST_POINTS = 2.0
SCRIPT = """
from pathlib import Path
from tests.watch import recipes
Path({told!r}).write_text(recipes.{function}())
"""
IN_RAY = """
from tests.watch import recipes
recipes.by_ray({folder!r})
"""
"""Ray trains in a process of its own, which writes the file `told`."""


@dataclass(frozen=True)
class Watched:
    """What vitprof and the timer say of one run."""

    n_found: int
    """Steps that vitprof found."""
    n_steps: int
    """Steps that the timer counted."""
    wait_frac: float
    """Share of the time that steps waited for data, by vitprof, 0..1."""
    timer_frac: float
    """The same by the timer."""
    verdict: str
    """The kind of vitprof's verdict."""

    @property
    def points(self) -> float:
        """By how much vitprof's share is higher, in percentage points."""
        return 100 * (self.wait_frac - self.timer_frac)


def watch(name: str) -> Watched:
    """Runs a recipe once. Ends the program with the recipe's errors where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        function = name if name in BY_HAND else f"by_{name}"
        script = SCRIPT.format(told=str(told), function=function)
        if name == "ray":
            script = IN_RAY.format(folder=folder)
        left = watch_script(["-c", script], Path(folder))
        truth = json.loads(told.read_text(encoding="utf-8"))
    run = left.run
    steps = left.steps
    # As the timer counts: neither the first steps, nor the one that begins the second epoch.
    counted = (steps["step"] >= SKIPPED) & (steps["step"] != N_STEPS // 2)
    waited_s = float(np.nansum(steps["data_wait_s"][counted]))
    wait_frac = waited_s / float(steps["step_s"][counted].sum())
    verdict = "none" if run.verdict is None else run.verdict.kind
    return Watched(len(steps["step"]), truth["steps"], wait_frac, truth["wait"], verdict)


def row(name: str, runs: list[Watched]) -> str:
    """Returns the table's row of a recipe."""
    found = ", ".join(sorted({f"{run.n_found}/{run.n_steps}" for run in runs}))
    wait_frac = median(run.wait_frac for run in runs)
    timer_frac = median(run.timer_frac for run in runs)
    points = sorted(run.points for run in runs)
    difference = f"{median(points):+.1f} ({points[0]:+.1f} to {points[-1]:+.1f})"
    verdicts = ", ".join(sorted({run.verdict for run in runs}))
    if abs(median(points)) > MOST_POINTS and verdicts != "inconclusive":
        difference += " WRONG"
    shares = f"{100 * wait_frac:.1f}% | {100 * timer_frac:.1f}%"
    return f"| {name} | {found} | {shares} | {difference} | {verdicts} |"


def main() -> None:
    known = [*FRAMEWORKS, "ray", *BY_HAND]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(known))
    parser.add_argument("--runs", type=int, default=3, help="of each")
    given = parser.parse_args()
    print("| recipe | steps | data wait | timer | points | verdict |")
    print("|---|---|---|---|---|---|")
    for name in given.names or known:
        if name not in BY_HAND and importlib.util.find_spec(name) is None:
            continue
        runs = [watch(name) for _ in range(given.runs)]
        print(row(name, runs), flush=True)


if __name__ == "__main__":
    main()
