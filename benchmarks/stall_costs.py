"""What it costs to look for the causes of late batches, where batches are late and where none is.

    python -m benchmarks.stall_costs [--seconds 60] [--rounds 3] [--workers 2]

Four scripts run at the same time in each round, each below a `vitprof watch` of its own: with and without batches that
are late, and each of these with and without looks. Read are the CPU time of the thread that looks, of the threads that
answer in the script and its workers, and of the whole processes, as a share of one core. The threads' own times are
exact; the difference of the processes with and without looks has all else that the looks bring with them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests import ROOT

BATCH = 4
USUAL_S = 0.002
WORK_S = 0.015
LATE_EVERY = 40
"""One batch in so many is late, so that the script waits for late ones two thirds of the time."""
STALL_S = 1.2
NOTED_EVERY = 25
"""Batches of a worker after which it notes the CPU time of its thread."""
Noted = Mapping[str, float]
"""What a run cost, by name."""
ROWS = {
    "looks": "the thread that looks, in `vitprof watch`",
    "answers": "the threads that answer, in the script and its workers",
    "recorder_s": "`vitprof watch`, all of it",
    "script_s": "the script's process, from its first step to its last",
}


def answering_s() -> float:
    """Returns the CPU time of this process's thread that says where it is."""
    from vitprof.watch import own_thread

    for thread in [*own_thread._RUNNING.values()]:
        if thread.name == "vitprof-stacks":
            used_ns = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
            return int(used_ns) / 1e9
    return 0.0


def train(seconds: float, *, is_late: bool, workers: int, folder: Path) -> None:
    """Trains a tiny model for so long, and notes what it cost."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(USUAL_S)
            batch, sample = divmod(index, BATCH)
            if sample == 0 and is_late and batch and batch % LATE_EVERY == 0:
                time.sleep(STALL_S)
            if sample == 0 and workers and batch // workers % NOTED_EVERY == 0:
                (folder / f"answers-{os.getpid()}").write_text(f"{answering_s()}")
            return torch.full((4,), float(index))

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    steps = 0
    began_s = 0.0
    began_cpu_s = 0.0
    for batch in DataLoader(Samples(), batch_size=BATCH, num_workers=workers):
        if not steps:
            began_s = time.perf_counter()
            began_cpu_s = time.process_time()
        steps += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(WORK_S)
        if time.perf_counter() - began_s > seconds:
            break
    script_s = time.process_time() - began_cpu_s
    trained_s = time.perf_counter() - began_s
    (folder / f"answers-{os.getpid()}").write_text(f"{answering_s()}")
    noted = {"steps": steps, "trained_s": trained_s, "script_s": script_s}
    (folder / "script").write_text(json.dumps(noted))


def watch(folder: Path, *, looks: bool, script: list[str]) -> None:
    """Watches a script in this process, and notes the CPU time of that and of the thread that looks."""
    from vitprof.__main__ import main as vitprof
    from vitprof.jobs.late_batches import LateBatchRecorder, ScriptWatch

    noted = {"looks": 0.0, "n_looks": 0}
    run = ScriptWatch._run
    look = ScriptWatch._look

    def counted(self: ScriptWatch, is_first: bool) -> Any:
        noted["n_looks"] += 1
        return look(self, is_first)

    def timed(self: ScriptWatch) -> None:
        run(self)
        noted["looks"] += time.thread_time()

    ScriptWatch._run = timed  # type: ignore[method-assign]
    ScriptWatch._look = counted  # type: ignore[method-assign]
    if not looks:
        LateBatchRecorder.follow = lambda *_: None  # type: ignore[method-assign]
    sys.argv = ["vitprof", "watch", "--quiet", "--", sys.executable, *script]
    try:
        vitprof()
    finally:
        noted["recorder_s"] = time.process_time()
        (folder / "recorder").write_text(json.dumps(noted))


def started(
    folder: Path, given: argparse.Namespace, *, is_late: bool, looks: bool
) -> subprocess.Popen[bytes]:
    folder.mkdir()
    own = {
        "PYTHONPATH": str(ROOT),
        "VITPROF_HOME": str(folder),
        "VITPROF_DB": f"sqlite:///{folder}/runs.sqlite",
        "OMP_NUM_THREADS": "1",
    }
    words = ["-m", "benchmarks.stall_costs", "--seconds", str(given.seconds)]
    words += ["--workers", str(given.workers), "--folder", str(folder)]
    words += ["--late"] if is_late else []
    watching = [sys.executable, *words, "--role", "watch"] + ([] if looks else ["--blind"])
    # what it says is that the others run at the same time
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(watching, cwd=ROOT, env={**os.environ, **own}, stderr=log)


def noted_in(folder: Path) -> Noted:
    """Returns what a run cost: shares of a core while it trained, and counts."""
    noted: dict[str, float] = json.loads((folder / "script").read_text())
    noted |= json.loads((folder / "recorder").read_text())
    noted["answers"] = sum(float(path.read_text()) for path in folder.glob("answers-*"))
    return noted


def shares(runs: list[Noted], name: str) -> str:
    """Returns the share of a core: the median of the runs and their range."""
    percent = 100 * np.array([run[name] / run["trained_s"] for run in runs])
    return f"{np.median(percent):.3f}% ({percent.min():.3f} to {percent.max():.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    for name in ("--late", "--blind"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "watch":
        # the last one of an option given twice counts
        script = ["-m", "benchmarks.stall_costs", *sys.argv[1:], "--role", "script"]
        watch(given.folder, looks=not given.blind, script=script)
        return
    if given.role == "script":
        train(given.seconds, is_late=given.late, workers=given.workers, folder=given.folder)
        return
    runs: dict[tuple[bool, bool], list[Noted]] = {}
    cases = [(is_late, looks) for is_late in (False, True) for looks in (False, True)]
    with tempfile.TemporaryDirectory() as parent:
        for number in range(given.rounds):
            folders = {case: Path(parent) / f"{number}-{n}" for n, case in enumerate(cases)}
            running = [
                started(folder, given, is_late=is_late, looks=looks)
                for (is_late, looks), folder in folders.items()
            ]
            for process, folder in zip(running, folders.values(), strict=True):
                if process.wait():
                    raise SystemExit(f"a script failed:\n{(folder / 'log').read_text()}")
            for case, folder in folders.items():
                runs.setdefault(case, []).append(noted_in(folder))
    print(f"{given.rounds} rounds of {given.seconds:g} s, {given.workers} workers; medians, range")
    for is_late in (False, True):
        show(runs[is_late, True], runs[is_late, False], "late" if is_late else "nothing is late")


def show(looked: list[Noted], blind: list[Noted], title: str) -> None:
    """Prints what runs cost that were looked at, and the same without looks."""
    print(title)
    print("  looks:", [int(run["n_looks"]) for run in looked])
    print("  steps:", [int(run["steps"]) for run in looked])
    for name in ("looks", "answers"):
        print(f"  {ROWS[name]}: {shares(looked, name)}")
    for name in ("recorder_s", "script_s"):
        pairs = zip(looked, blind, strict=True)
        more = [
            100 * (with_[name] / with_["trained_s"] - bare[name] / bare["trained_s"])
            for with_, bare in pairs
        ]
        print(f"  {ROWS[name]}: {shares(looked, name)}, without looks {shares(blind, name)};")
        print(f"    {np.median(more):+.3f} points ({min(more):+.3f} to {max(more):+.3f})")


if __name__ == "__main__":
    main()
