"""Compares strategies side by side on this machine: loader only, and with training.

    python -m benchmarks.strategies [--rounds 3] [--loader-only] [--csv FILE]

Runs every strategy at every batch size in turn, `--rounds` times over, each in a process of its own, torch on one
thread, and prints the median of the rounds' samples/s with their range. Uses VITPROF_HOME as the dashboard does.
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path

from vitprof.config import RunConfig
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore

CASES: tuple[tuple[str, int | None], ...] = (
    ("per-sample", None),
    ("tensordataset", None),
    ("workers", 2),
    ("memory", None),
)
BATCH_SIZES = (100, 500, 1000, 5000)
TRAIN_STEPS = {100: 45, 500: 15, 1000: 11, 5000: 7}
WARMUP_STEPS = 3
LOADER_SECONDS = 3.0


def configs(loader_only: bool) -> list[RunConfig]:
    return [
        RunConfig(
            strategy=strategy,
            workers=workers,
            batch_size=batch_size,
            steps=None if loader_only else TRAIN_STEPS[batch_size],
            seconds=LOADER_SECONDS if loader_only else None,
            loader_only=loader_only,
            warmup_steps=WARMUP_STEPS,
            evaluate=False,
            threads=1,
            device="cpu",
        )
        for batch_size in BATCH_SIZES
        for strategy, workers in CASES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--loader-only", action="store_true", help="leave out the runs with training"
    )
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    store = RunStore()
    manager = JobManager(store)
    speeds: dict[tuple[bool, int, str], list[float]] = {}
    try:
        for index in range(given.rounds):
            for config in configs(loader_only=True) + (
                [] if given.loader_only else configs(loader_only=False)
            ):
                run_id = manager.submit(config)
                manager.wait(run_id)
                run = store.run(run_id)
                if run.status != "done" or run.summary is None:
                    raise SystemExit(f"{run.name}: {run.status}: {run.error}")
                key = (config.loader_only, config.batch_size, config.strategy)
                speeds.setdefault(key, []).append(run.summary.samples_per_s)
                print(
                    f"round {index + 1}: {run.name}: {run.summary.samples_per_s:,.0f} samples/s",
                    file=sys.stderr,
                )
    finally:
        manager.shutdown()
        store.close()
    for loader_only in (True,) if given.loader_only else (True, False):
        print(
            f"\n{'loader only' if loader_only else 'with training'}, samples/s: median (range) of {given.rounds}\n"
        )
        print("| batch | " + " | ".join(s + (f" ({w})" if w else "") for s, w in CASES) + " |")
        print("|---" * (len(CASES) + 1) + "|")
        for batch_size in BATCH_SIZES:
            cells = []
            for strategy, _ in CASES:
                found = speeds[loader_only, batch_size, strategy]
                cells.append(
                    f"{statistics.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"
                )
            print(f"| {batch_size} | " + " | ".join(cells) + " |")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("loader_only", "batch_size", "strategy", "round", "samples_per_s"))
            for key, values in speeds.items():
                writer.writerows((*key, i, v) for i, v in enumerate(values))


if __name__ == "__main__":
    main()
