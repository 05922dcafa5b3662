"""The cost of watching a user's own script: bare, under `vitprof watch`, and under two peers from PyPI.

    python -m benchmarks.watching [--minutes 5.5] [--rounds N] [--only CASE ...] [--tools TOOL ...] [--csv FILE]

A round runs the script (`benchmarks.watched_loop`) once under every tool, in an order shuffled by `--seed`, each in an
interpreter of its own with all cases in it. "bare again" shows what chance alone does. Three figures are read for a
step: its time, on the script's own clock; the CPU time of the script's process; and that of the watching programs
(vitprof's collector, TraceML's aggregator), which another core can spare. The body of a step computes for a fixed CPU
time, so CPU times are reliable on a machine that others use, where step times are not. Ratios are of one round, figures
are medians over rounds with a 95% bootstrap interval. It runs as many rounds as fit in `--minutes`. Needs Linux. Peers,
where installed:

    pip install traceml-ai gpuprof

Then it measures, in this process, the time that watching adds to making a batch in a worker.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.overhead import (
    AT_MOST,
    BARE,
    MODULES,
    REPOSITORY,
    Row,
    over_rounds,
    shown,
    wait_for,
)
from benchmarks.watched_batch import print_batches
from benchmarks.watched_cases import CASES, RUN_OF, Case
from vitprof.analysis.arrays import Interval

WATCHED = "watch"
TITLES = {
    BARE: "bare",
    "bare-again": "bare again",
    WATCHED: "vitprof watch",
    "traceml": "TraceML",
    "gpuprof": "gpuprof",
}
ASKED_FROM_MS = 1.5
WHOSE = ("own", "workers", "others")
"""Processes whose CPU time is read: this one, and those of `watched_cases.cpu_beside`."""


@dataclass
class Watched(Row):
    """A tool in a case, with CPU times."""

    cpu_us: dict[str, dict[int, float]] = field(
        default_factory=lambda: {whose: {} for whose in WHOSE}
    )
    """CPU time of each step, by `WHOSE`, then by the number of the round."""

    def added_us(self, bare: Watched, *whose: str) -> Interval:
        """Returns the microseconds of CPU that a step takes more than under `bare`: the median over the rounds that
        both have, with its interval.
        """
        both = sorted(self.ms["median"].keys() & bare.ms["median"].keys())
        more = [
            sum(self.cpu_us[w][number] - bare.cpu_us[w][number] for w in whose) for number in both
        ]
        return over_rounds(np.array(more))


Rows = dict[tuple[str, str], Watched]


def main(arguments: Sequence[str] | None = None) -> None:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8, help="at most")
    parser.add_argument(
        "--minutes", type=float, default=5.5, help="no round begins that would end after this"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times as many steps in each round"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed for the order of the tools")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="CASE", default=names, help=", ".join(names)
    )
    parser.add_argument(
        "--tools",
        nargs="+",
        choices=TITLES,
        metavar="TOOL",
        default=list(TITLES),
        help=", ".join(TITLES),
    )
    parser.add_argument("--csv", type=Path, help="the figures of every round")
    given = parser.parse_args(arguments)
    tools = [BARE, *(tool for tool in given.tools if tool != BARE)]
    for tool in [
        tool
        for tool in tools
        if tool in MODULES and importlib.util.find_spec(MODULES[tool]) is None
    ]:
        print(
            f"{TITLES[tool]}: not measured, {MODULES[tool]} is not installed (pip install traceml-ai gpuprof)"
        )
        tools.remove(tool)
    cases = [case for case in CASES if case.name in given.only]
    rows: Rows = {(case.name, tool): Watched(case.name, tool) for case in cases for tool in tools}
    began = time.monotonic()
    spins = calibrated(cases)
    order, longest = random.Random(given.seed), 0.0
    for number in range(given.rounds):
        round_began = time.monotonic()
        if number and round_began + longest > began + 60 * given.minutes:
            break
        order.shuffle(tools)
        for tool in tools:
            print(
                f"round {number + 1} of {given.rounds}: {TITLES[tool]} ...",
                file=sys.stderr,
                flush=True,
            )
            for name, found in run_tool(tool, spins, given.scale).items():
                add(rows[name, tool], number, found)
        longest = max(longest, time.monotonic() - round_began)
        if given.csv:
            write_csv(given.csv, rows)
    print_table(rows)
    print_batches()


def calibrated(cases: Sequence[Case]) -> dict[str, float]:
    """Returns the CPU seconds that each case's body computes, so that a bare step takes what its name says; 0 where
    the loader and the tiny model alone take as long.
    """
    rest = run_tool(BARE, {case.name: 0.0 for case in cases}, 0.2)
    return {
        case.name: max(0.0, case.step_ms / 1e3 - rest[case.name]["cpu_s"]["own"]) for case in cases
    }


def run_tool(tool: str, spins: dict[str, float], scale: float) -> dict[str, dict[str, Any]]:
    """Runs the cases `spins` under `tool` and returns the script's results; where that fails, prints a line that says
    why, and returns {}.
    """
    with tempfile.TemporaryDirectory(prefix="vitprof-watching-") as temporary:
        folder, log = Path(temporary), Path(temporary, "log")
        asked = [f"{name}={seconds!r}" for name, seconds in spins.items()]
        known = BARE if tool in ("bare-again", WATCHED) else tool
        own = [known, str(folder / "result.json"), temporary, str(scale), *asked]
        script = [sys.executable, "-m", "benchmarks.watched_loop", *own]
        command = script
        if tool == WATCHED:
            command = [sys.executable, "-m", "vitprof", "watch", "--", *script]
        elif tool == "traceml":
            path = str(REPOSITORY / "benchmarks" / "watched_loop.py")
            launcher = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", path]
            command = [*launcher, "--logs-dir", str(folder / "logs"), "--args", *own]
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "VITPROF_HOME": temporary,
            "OMP_NUM_THREADS": "1",
            RUN_OF: temporary,
        }
        try:
            with log.open("wb") as output:
                wait_for(command, cwd=folder, env=env, stdout=output, stderr=output)
            told = log.read_text(errors="replace")
            if "gave up watching" in told:
                raise subprocess.SubprocessError("gave up watching")
            result: dict[str, dict[str, Any]] = json.loads((folder / "result.json").read_text())
            return result
        except (subprocess.SubprocessError, OSError) as error:
            last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
            print(f"{TITLES[tool]}: failed: {type(error).__name__}: {last[0]}", flush=True)
            return {}


def add(row: Watched, number: int, found: dict[str, Any]) -> None:
    """Adds the results of a round to a row."""
    row.add(number, 1e3 * np.array(found["steps_s"]))
    for whose in WHOSE:
        row.cpu_us[whose][number] = 1e6 * found["cpu_s"][whose]


def gate(row: Watched, rows: Rows, step_ms: float) -> str:
    """Returns whether watching meets the gate, in CPU time of script, workers and collector together, and costs less
    than every peer that was measured. The intervals decide; where they do not, it is undecided.
    """
    bare = rows[row.case, BARE]
    if row.tool != WATCHED or not row.n_rounds or not bare.n_rounds:
        return ""
    step_us = 1e3 * float(np.median(list(bare.ms["median"].values())))
    own = row.added_us(bare, "own").value / step_us
    share = Interval(*(us / step_us for us in row.added_us(bare, *WHOSE)))
    verdicts = [f"{own:.2%} of a step, {share.value:.2%} with workers and collector"]
    if step_ms >= ASKED_FROM_MS:
        most = AT_MOST - 1
        verdicts[0] += (
            f": {'met' if share.high <= most else 'MISSED' if share.low > most else 'undecided'}"
        )
    for peer in MODULES:
        other = rows.get((row.case, peer))
        if other is not None and other.n_rounds:
            more = row.added_us(other, *WHOSE)
            verdict = (
                "below" if more.high < 0 else "NOT below" if more.low > 0 else "undecided against"
            )
            verdicts.append(f"{verdict} {TITLES[peer]}")
    return "; ".join(verdicts)


def print_table(rows: Rows) -> None:
    """Prints a line for each case and tool."""
    cases = {case.name: case for case in CASES}
    print(
        "| step | tool | median ms | x bare (95%) | mean x bare (95%) | CPU added, own us (95%) | "
        "CPU added, workers us | CPU added, watcher us (95%) | rounds x steps | gate (all CPU added) |"
    )
    print("|---" * 10 + "|")
    for (name, tool), row in rows.items():
        bare = rows[name, BARE]
        cells = ["not measured", *[""] * 5, "0"]
        if row.n_rounds and bare.n_rounds:
            figures = [f"{float(np.median(list(row.ms['median'].values()))):.3f}"]
            figures += (
                ["1", "1"]
                if tool == BARE
                else [shown(row.times(bare, s)) for s in ("median", "mean")]
            )
            figures += (
                ["", "", ""]
                if tool == BARE
                else [_us(row.added_us(bare, whose)) for whose in WHOSE]
            )
            cells = [*figures, f"{row.n_rounds} x {row.n_steps}"]
        print(
            f"| {' | '.join([cases[name].title, TITLES[tool], *cells, gate(row, rows, cases[name].step_ms)])} |"
        )


def _us(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.1f}" + (f" ({low:.1f} to {high:.1f})" if np.isfinite(low) else "")


def write_csv(path: Path, rows: Rows) -> None:
    """Writes a line for each round of each case and tool."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            (
                "case",
                "round",
                "tool",
                "n_steps",
                "median_ms",
                "mean_ms",
                *(f"{w}_cpu_us" for w in WHOSE),
            )
        )
        for row in rows.values():
            for number in row.ms["median"]:
                times = (row.ms[statistic][number] for statistic in ("median", "mean"))
                cpu = (row.cpu_us[whose][number] for whose in WHOSE)
                writer.writerow((row.case, number, row.tool, row.n_steps, *times, *cpu))


if __name__ == "__main__":
    main()
