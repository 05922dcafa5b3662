"""A training that tells of its steps as a watched one does, without PyTorch, and writes as people's scripts do. Its
arguments: epochs, and as JSON what else is known of it."""

import json
import sys
import time

import numpy as np

from tests.jobs.sending import columns, waiting, watched
from vitprof.measure.wire import Note

STEPS = 25
"""Of each epoch; all steady but the first 5 of the run."""
PARTS = {"forward_compute_s": 0.002, "backward_compute_s": 0.003, "optimizer_compute_s": 0.0006}
"""Of 6 ms of compute."""


def train(epochs: int, facts: dict[str, object]) -> None:
    """Steps of 10 ms, 4 of them data wait."""
    with watched(watched={"dataset": "Samples", "batch_size": 32}) as send:
        send(Note("facts", {"transforms": {"Crop": {"s_per_sample": 0.003, "calls": 9}}} | facts))
        for epoch in range(epochs):
            number = np.arange(epoch * STEPS, (epoch + 1) * STEPS)
            times = waiting(100 + number * 0.01, np.full(STEPS, 0.004), np.full(STEPS, 0.006))
            known = {"samples": 32, "warmup": number < 5, **times, **PARTS}
            send(columns(STEPS, step=number, epoch=0, **known))
            sys.stdout.write(f"epoch {epoch} {'x' * 50}\n")
            for batch in range(3):
                sys.stderr.write(f"\rbatch {batch}")
                time.sleep(0.1)
            sys.stderr.write("\n")


if __name__ == "__main__":
    try:
        train(int(sys.argv[1]), json.loads((sys.argv[2:] or ["{}"])[0]))
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
        raise
