"""A training that tells of its steps as a watched one does, without PyTorch, and writes as people's scripts do."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

import numpy as np

from vitprof.measure.wire import Message, Note, write_message
from vitprof.recording.columns import STEP_COLUMNS

STEPS = 25
"""Of each epoch; all steady but the first 5 of the run."""


def steps(first: int) -> Message:
    """Steps of 10 ms, 4 of them data wait."""
    rows = []
    for step in range(first, first + STEPS):
        start = 100 + step * 0.01
        known = {"step": step, "t_start_s": start, "data_wait_s": 0.004, "compute_start_s": start + 0.004}
        known |= {"compute_s": 0.006, "gap_s": 0.004, "exposed_wait_s": 0.004, "step_s": 0.01, "samples": 32}
        known |= {"rank": 0, "epoch": 0, "warmup": float(step < 5)}
        rows.append([known.get(name, float("nan")) for name in STEP_COLUMNS])
    return dict(zip(STEP_COLUMNS, np.array(rows).T, strict=True))


def train(tell: Callable[[Message], None], epochs: int) -> None:
    tell(
        Note("environment", {"device": "cpu", "pid": os.getpid(), "watched": {"dataset": "Samples", "batch_size": 32}})
    )
    tell(Note("facts", {"transforms": {"Crop": {"s_per_sample": 0.003, "calls": 9}}}))
    for epoch in range(epochs):
        tell(steps(epoch * STEPS))
        sys.stdout.write(f"epoch {epoch} {'x' * 50}\n")
        for batch in range(3):
            sys.stderr.write(f"\rbatch {batch}")
            time.sleep(0.1)
        sys.stderr.write("\n")


def main() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["VITPROF_WATCH_SOCKET"])
        stream = connection.makefile("wb")

    def tell(message: Message) -> None:
        write_message(stream, message)
        stream.flush()

    try:
        train(tell, epochs=int(sys.argv[1]))
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
        raise


if __name__ == "__main__":
    main()
