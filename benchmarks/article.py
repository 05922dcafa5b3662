"""Repeats the article's table: sample by sample against the whole set in memory, on a simulated RTX 2060.

    python -m benchmarks.article [--rounds 3] [--csv FILE]

Prints seconds for an epoch of 60,000 digits by batch size, beside the article's own figures (its RTX 2060 and its
host). The accelerator is simulated: 66 ms a step and 70 us a sample. The loading is real, on this machine. `slow host`
adds an injected wait: the time by which this machine's sample-by-sample loading is faster than the article's (0.85 ms a
sample, the middle of its flat range of 0.78 to 1.03). Rounds are interleaved; a figure is their median with the range.
"""

import argparse
import csv
import math
import statistics
import sys
from pathlib import Path

from vitprof.config import RunConfig
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore, StoredRun

DEVICE = "simulated:rtx2060-article"
N_TRAIN = 60_000
ARTICLE_SAMPLE_S = 0.85e-3
ARTICLE: dict[int, tuple[float, float]] = {
    100: (math.nan, 51),
    300: (62, math.nan),
    500: (59, 12),
    1000: (57, 7.18),
    3000: (48, math.nan),
    5000: (47, 5.84),
    10000: (50, 4.65),
}
"""Seconds an epoch, sample by sample and in memory, on an RTX 2060, in the article's table."""
CASES = ("per-sample", "memory", "slow host")
WARMUP_STEPS = 2


def steady_steps(case: str, batch_size: int) -> int:
    """Returns the number of steps to measure: few where a step takes seconds; they are all alike."""
    if case == "slow host":
        return 5
    return 25 if batch_size <= 1000 else 10


def config_of(case: str, batch_size: int, sample_s: float) -> RunConfig:
    """Returns the config of a short job. A step of the slow host at batch size 10,000 takes 8.5 s."""
    wait_ms = max(0.0, ARTICLE_SAMPLE_S - sample_s) * batch_size * 1e3
    return RunConfig(
        name=f"{case}, batch {batch_size}, simulated",
        strategy="memory" if case == "memory" else "per-sample",
        batch_size=batch_size,
        steps=WARMUP_STEPS + steady_steps(case, batch_size),
        warmup_steps=WARMUP_STEPS,
        inject=f"transform:{wait_ms:.3f}" if case == "slow host" else None,
        evaluate=False,
        threads=1,
        device=DEVICE,
    )


def measured(manager: JobManager, store: RunStore, config: RunConfig) -> StoredRun:
    """Returns the finished run of `config`. Raises `SystemExit` where it fails."""
    run_id = manager.submit(config)
    manager.wait(run_id)
    run = store.run(run_id)
    if run.status != "done" or run.summary is None:
        raise SystemExit(f"{run.name}: {run.status}: {run.error}")
    return run


def loading_s(manager: JobManager, store: RunStore) -> float:
    """Returns the time (s) of sample-by-sample loading on this machine for each sample, without training."""
    config = RunConfig(
        strategy="per-sample", batch_size=1000, steps=14, loader_only=True, threads=1, device="cpu"
    )
    summary = measured(manager, store, config).summary
    assert summary is not None
    return 1 / summary.samples_per_s


def cell(values: list[float], digits: int = 3) -> str:
    """Returns median and range as text."""
    return f"{statistics.median(values):.{digits}g} ({min(values):.{digits}g}-{max(values):.{digits}g})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    store = RunStore()
    manager = JobManager(store)
    epochs: dict[tuple[int, str], list[float]] = {}
    idle: dict[tuple[int, str], list[float]] = {}
    try:
        sample_s = statistics.median(loading_s(manager, store) for _ in range(given.rounds))
        for index in range(given.rounds):
            for batch_size in ARTICLE:
                for case in CASES:
                    summary = measured(
                        manager, store, config_of(case, batch_size, sample_s)
                    ).summary
                    assert summary is not None
                    epoch_s = N_TRAIN / summary.samples_per_s
                    epochs.setdefault((batch_size, case), []).append(epoch_s)
                    idle.setdefault((batch_size, case), []).append(summary.device_idle_frac)
                    print(
                        f"round {index + 1}: {case}, batch {batch_size}: {epoch_s:.3g} s",
                        file=sys.stderr,
                    )
    finally:
        manager.shutdown()
        store.close()
    print(
        f"\nseconds an epoch on {DEVICE}, median (range) of {given.rounds}; sample by sample, loading takes ",
        end="",
    )
    print(
        f"{sample_s * 1e6:.0f} us a sample here and {ARTICLE_SAMPLE_S * 1e6:.0f} us on the article's host\n"
    )
    header = [
        "batch",
        "article: sample by sample",
        "slow host, simulated",
        "its device idle",
        "per-sample, simulated",
    ]
    header += ["its device idle", "article: in memory", "memory, simulated", "its device idle"]
    print("| " + " | ".join(header) + " |")
    print("|---" * len(header) + "|")
    for batch_size, (by_sample, in_memory) in ARTICLE.items():
        row = [str(batch_size), "-" if math.isnan(by_sample) else f"{by_sample:g}"]
        for case in ("slow host", "per-sample"):
            row += [
                cell(epochs[batch_size, case]),
                f"{statistics.median(idle[batch_size, case]):.0%}",
            ]
        row += [
            "-" if math.isnan(in_memory) else f"{in_memory:g}",
            cell(epochs[batch_size, "memory"]),
        ]
        print(
            "| " + " | ".join([*row, f"{statistics.median(idle[batch_size, 'memory']):.0%}"]) + " |"
        )
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("batch_size", "case", "round", "epoch_s", "device_idle_frac", "device")
            )
            for key, values in epochs.items():
                writer.writerows((*key, i, v, idle[key][i], DEVICE) for i, v in enumerate(values))


if __name__ == "__main__":
    main()
