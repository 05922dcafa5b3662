"""A script that passes for a watched training, without PyTorch: what a trial asks for is in the steps that it tells. A
step takes 40 ms, and 10 ms where it has workers; nothing waits for that. Words on its command line make it do more."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from tests.jobs.sending import columns, waiting, watched

AS_IT_IS = {
    "num_workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "persistent_workers": False,
    "start_method": None,
    "batch_size": 8,
    "n_samples": 80,
    "dataset": "Pretended",
}
MADE = {
    "made_place": "there",
    "made_where": "train.py:7",
    "made_nth": 1,
    "made_alone": True,
    "made_given": "",
}


def steps(
    n: int, workers: int, loss: float, trial: int, epoch_steps: int = 10
) -> dict[str, np.ndarray]:
    rng, step_s, number = np.random.default_rng(trial), 0.01 if workers else 0.04, np.arange(n)
    took = step_s * (1 + 0.01 * rng.random(n))
    times = waiting(time.perf_counter() - took.sum() + np.cumsum(took) - took, took / 2, took / 2)
    return columns(
        n,
        step=number,
        epoch=number // epoch_steps,
        samples=8,
        loss=loss - number / 100,
        warmup=number < 5,
        **times,
    )


def main() -> None:
    wanted, trial = (
        json.loads(os.environ["VITPROF_WATCH_OVERRIDES"]),
        int(os.environ["VITPROF_TRIAL"]),
    )
    loader = AS_IT_IS | wanted.get("arguments", {})
    workers = loader["num_workers"]
    if "writes" in sys.argv:
        Path("model.pt").write_text(f"of trial {trial}")
    if "reads" in sys.argv:
        Path("model.pt").read_text()
    if "fails" in sys.argv and workers:
        raise ValueError("not with workers\nreally not")
    if "hangs" in sys.argv:
        sys.stdout.write("on\n")
        sys.stdout.flush()
        time.sleep(60)
    if "decodes" in sys.argv:
        largest = 3 * ("other pixels" in sys.argv)
        first = {"pid": 1, "decoded": 4, "stayed": 1, "why": "its mode is L", "compared": 2}
        second = first | {"pid": 2, "differ": 2 * bool(largest), "largest": largest}
        with open(os.environ["VITPROF_WATCH_TELL"], "a") as file:
            for report in (first, second, first | {"decoded": 5}):
                file.write(json.dumps(["pixels", json.dumps(report)]) + "\n")
    if "crosses as ever" in sys.argv:
        with open(os.environ["VITPROF_WATCH_TELL"], "a") as file:
            file.write(json.dumps(["unused", "uint8=on changes nothing"]) + "\n")
    changed = bool(wanted) and wanted["place"] == "there" and "elsewhere" not in sys.argv
    loss = float(trial) if "random" in sys.argv else 1.0 + ("differs" in sys.argv and workers > 0)
    n = min(int(os.environ["VITPROF_WATCH_STEPS"]), 20 if "short" in sys.argv else 10**6)
    with watched(watched=loader | MADE | {"made_changed": changed}) as send:
        # as with an IterableDataset of which each worker gives all
        epoch_steps = 10 * max(1, workers) if "all from each worker" in sys.argv else 10
        send(steps(n, workers, loss, trial, epoch_steps))


if __name__ == "__main__":
    main()
