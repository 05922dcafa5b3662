"""The time of a step on a device, as A ms + B us a sample: the figures for a simulated device that imitates it.

    python -m benchmarks.accelerator [--device cuda:0] [--model tiny] [--batch-sizes 64,128,256,512,1024] [--rounds 3]

Trains on batches that are on the device already (`--replay device`), so that only the step is measured, at several
batch sizes in turn, and fits a line through the median steps. Prints the line with its largest error, and the name of
the simulated device: `simulated:A,B`.
"""

import argparse
import statistics

import numpy as np

from vitprof.config import RunConfig
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore


def step_s(manager: JobManager, store: RunStore, config: RunConfig) -> tuple[float, str]:
    """Returns the median step time (s) of a run, and the device's name. Raises `SystemExit` where the run fails."""
    run_id = manager.submit(config)
    manager.wait(run_id)
    run = store.run(run_id)
    if run.status != "done" or run.summary is None:
        raise SystemExit(f"{run.name}: {run.status}: {run.error}")
    return run.summary.step_ms_median / 1e3, str(run.environment.get("device_name"))


def fit(batch_sizes: list[int], seconds: list[float]) -> tuple[float, float, float]:
    """Returns seconds a step, seconds a sample, and the largest relative error of the line.

    Minimises the squares of relative errors: a fit in seconds would follow only the largest batches.
    """
    weights = 1 / np.array(seconds)
    columns = np.stack([np.ones(len(seconds)), np.array(batch_sizes, dtype=float)], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns * weights[:, None], np.ones(len(seconds)), rcond=None)
    error = np.abs(columns @ np.array([a, b]) * weights - 1).max()
    return float(a), float(b), float(error)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--batch-sizes", default="64,128,256,512,1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0, help="torch's CPU threads")
    given = parser.parse_args()
    batch_sizes = [int(text) for text in given.batch_sizes.split(",")]
    if len(batch_sizes) < 2:
        parser.error("--batch-sizes: give at least two, such as 64,512")
    store = RunStore()
    manager = JobManager(store)
    found: dict[int, list[float]] = {b: [] for b in batch_sizes}
    try:
        for _ in range(given.rounds):
            for batch_size in batch_sizes:
                config = RunConfig(
                    strategy="memory",
                    replay="device",
                    batch_size=batch_size,
                    model=given.model,
                    device=given.device,
                    steps=given.steps,
                    threads=given.threads,
                    evaluate=False,
                )
                seconds, name = step_s(manager, store, config)
                found[batch_size].append(seconds)
    finally:
        manager.shutdown()
        store.close()
    medians = [statistics.median(found[b]) for b in batch_sizes]
    a, b, error = fit(batch_sizes, medians)
    print(
        f"{name}, ViT {given.model}: median step of {given.rounds} runs of {given.steps} steps each\n"
    )
    print("| batch | step | line |\n|---|---|---|")
    for batch_size, seconds in zip(batch_sizes, medians, strict=True):
        low, high = min(found[batch_size]), max(found[batch_size])
        line = (a + b * batch_size) * 1e3
        print(
            f"| {batch_size} | {seconds * 1e3:.3g} ms ({low * 1e3:.3g}-{high * 1e3:.3g}) | {line:.3g} ms |"
        )
    print(f"\n{a * 1e3:.4g} ms a step and {b * 1e6:.4g} us a sample, largest error {error:.0%}:")
    print(f"--device simulated:{max(0.0, a) * 1e3:.4g},{b * 1e6:.4g}")


if __name__ == "__main__":
    main()
