"""The cost of measuring: the same job bare, under vitprof, under torch.profiler and under two peers from PyPI.

    python -m benchmarks.overhead [--rounds 4] [--only CASE ...] [--tools TOOL ...] [--csv FILE]

A round runs every tool once, in an order shuffled by `--seed`, each in an interpreter of its own, torch on one thread.
"bare again" is the plain loop a second time: its ratio to bare shows what chance alone does here. The loop itself reads
step times, never the tool. A ratio is of medians (means, 99th percentiles) of one round; the figure is the median over
rounds with a 95% bootstrap interval over rounds. The mean shows what the median cannot: a device goes on working while
the host is held up, so a tool that is slow now and then makes the following step look short. Peers are run as their
manuals say, where they are installed:

    pip install traceml-ai gpuprof

Uses the data set under VITPROF_HOME, as a job does; what the tools write goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.overhead_cases import CASES, USUAL
from vitprof import home
from vitprof.analysis.arrays import UNKNOWN, Interval
from vitprof.datasets import on_disk

REPOSITORY = Path(__file__).resolve().parents[1]
BARE = "bare"
TITLES = {
    BARE: "bare",
    "bare-again": "bare again",
    "vitprof": "vitprof, the job's process",
    "vitprof-app": "vitprof, whole: manager, telemetry, store",
    "torch-cycles": "torch.profiler, wait 1, warm-up 1, active 3",
    "torch-always": "torch.profiler, always",
    "traceml": "TraceML",
    "gpuprof": "gpuprof",
}
MODULES = {"traceml": "traceml_ai", "gpuprof": "gpuprof"}
OURS = ("vitprof", "vitprof-app")
AT_MOST = 1.01
"""Most that vitprof may cost: ratio of median step times."""
ASKED_FROM_MS = 1.5
RESAMPLES = 2000
P99_STEPS = 100
"""With fewer steps in a round the 99th percentile is only the slowest step."""
CHILD_S = 300.0
STATISTICS = ("median", "mean", "p99")
COLUMNS = ("case", "round", "tool", "n_steps", *(f"{statistic}_ms" for statistic in STATISTICS))


@dataclass
class Row:
    """A tool in a case: its figures in each round that succeeded."""

    case: str
    tool: str
    ms: dict[str, dict[int, float]] = field(
        default_factory=lambda: {statistic: {} for statistic in STATISTICS}
    )
    """Step times by statistic, then by the number of the round."""
    n_steps: int = 0
    """The number of steps in each round."""

    def add(self, number: int, steps_ms: NDArray[np.float64]) -> None:
        """Adds the step times of a round, (n,) in milliseconds."""
        self.n_steps = len(steps_ms)
        median, p99 = np.percentile(steps_ms, [50, 99])
        for statistic, value in zip(STATISTICS, (median, steps_ms.mean(), p99), strict=True):
            self.ms[statistic][number] = float(value)

    @property
    def n_rounds(self) -> int:
        return len(self.ms["median"])

    def times(self, bare: Row, statistic: str = "median") -> Interval:
        """Returns the ratio to `bare`: the median over the rounds that both have, with its interval."""
        mine, base = self.ms[statistic], bare.ms[statistic]
        return over_rounds(
            np.array([mine[number] / base[number] for number in sorted(mine.keys() & base.keys())])
        )


def main(arguments: Sequence[str] | None = None) -> None:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times as many steps in each round"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed for the order of the tools")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="CASE", default=USUAL, help=", ".join(names)
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
    on_disk.prepare("digits")
    rows = {(case, tool): Row(case, tool) for case in given.only for tool in tools}
    order = random.Random(given.seed)
    for number in range(given.rounds):
        order.shuffle(tools)
        for tool in tools:
            print(
                f"round {number + 1} of {given.rounds}: {TITLES[tool]} ...",
                file=sys.stderr,
                flush=True,
            )
            for case, found in run_tool(tool, given.only, given.scale).items():
                rows[case, tool].add(number, 1e3 * np.array(found["steps_s"]))
        if given.csv:  # after each round, so that figures survive an early end
            write_csv(given.csv, rows.values())
    print_table(rows)


def run_tool(tool: str, cases: Sequence[str], scale: float) -> dict[str, dict[str, list[float]]]:
    """Runs the cases under `tool` in a fresh interpreter and returns their results; where that fails, prints a line
    that says why, and returns {}.
    """
    with tempfile.TemporaryDirectory(prefix="vitprof-overhead-") as temporary:
        folder, log = Path(temporary), Path(temporary, "log")
        (folder / "data").symlink_to(home.data_dir())
        own = [
            BARE if tool == "bare-again" else tool,
            str(folder / "result.json"),
            temporary,
            str(scale),
            *cases,
        ]
        command = [sys.executable, "-m", "benchmarks.overhead_tools", *own]
        if tool == "traceml":
            script = str(REPOSITORY / "benchmarks" / "overhead_tools.py")
            launcher = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", script]
            command = [*launcher, "--logs-dir", str(folder / "logs"), "--args", *own]
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "VITPROF_HOME": temporary, "OMP_NUM_THREADS": "1"}
        try:
            with log.open("wb") as output:
                wait_for(command, cwd=folder, env=env, stdout=output, stderr=output)
            result: dict[str, dict[str, list[float]]] = json.loads(
                (folder / "result.json").read_text()
            )
            return result
        except (subprocess.SubprocessError, OSError) as error:
            last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
            print(f"{TITLES[tool]}: failed: {type(error).__name__}: {last[0]}", flush=True)
            return {}


def wait_for(command: list[str], **options: Any) -> None:
    """Runs `command` in a process group of its own, so that what it starts ends with it. Raises `SubprocessError`."""
    with subprocess.Popen(command, start_new_session=True, **options) as child:
        try:
            if code := child.wait(CHILD_S):
                raise subprocess.CalledProcessError(code, command)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def over_rounds(values: NDArray[np.float64]) -> Interval:
    """Returns the median with a 95% interval, by a bootstrap over rounds; without an interval for fewer than three."""
    if not len(values):
        return UNKNOWN
    if len(values) < 3:
        return Interval(float(np.median(values)), math.nan, math.nan)
    draws = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[draws], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


def gate(row: Row, rows: dict[tuple[str, str], Row]) -> str:
    """Returns whether vitprof meets the gate, and costs less than every peer that was measured, by the median; "" for
    other tools.
    """
    bare = rows[row.case, BARE]
    if row.tool not in OURS or not row.n_rounds or not bare.n_rounds:
        return ""
    mine = row.times(bare).value
    verdicts = []
    if np.median(list(bare.ms["median"].values())) >= ASKED_FROM_MS:
        verdicts.append(f"<= {AT_MOST}: {'met' if mine <= AT_MOST else 'MISSED'}")
    for peer in MODULES:
        other = rows.get((row.case, peer))
        if other is not None and other.n_rounds:
            verdicts.append(
                f"{'below' if mine < other.times(bare).value else 'NOT below'} {TITLES[peer]}"
            )
    return "; ".join(verdicts)


def print_table(rows: dict[tuple[str, str], Row]) -> None:
    titles = {case.name: case.title for case in CASES}
    print(
        "| job | tool | median ms | x bare (95%) | mean x bare (95%) | p99 x bare (95%) | rounds x steps | gate |"
    )
    print("|---" * 8 + "|")
    for (case, tool), row in rows.items():
        bare = rows[case, BARE]
        cells = ["not measured", "", "", "", "0"]
        if row.n_rounds:
            times = [
                "1" if tool == BARE else shown(row.times(bare, statistic))
                for statistic in STATISTICS
            ]
            if row.n_steps < P99_STEPS:
                times[-1] = f"too few steps: {times[-1]}" if tool != BARE else times[-1]
            median_ms = float(np.median(list(row.ms["median"].values())))
            cells = [f"{median_ms:.3f}", *times, f"{row.n_rounds} x {row.n_steps}"]
        print(f"| {' | '.join([titles[case], TITLES[tool], *cells, gate(row, rows)])} |")


def shown(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.3f}" + (f" ({low:.3f} to {high:.3f})" if math.isfinite(low) else "")


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            for number in row.ms["median"]:
                figures = (row.ms[statistic][number] for statistic in STATISTICS)
                writer.writerow((row.case, number, row.tool, row.n_steps, *figures))


if __name__ == "__main__":
    main()
