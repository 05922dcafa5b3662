"""A script that passes for a watched training with one worker process, without PyTorch, and tells of its real times.

The first argument is a file: from the 40th step on, once, the worker reads it to its end.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.jobs.sending import columns, waiting, watched

STEPS, READ_AT, STEP_S = 80, 40, 0.02


def work(pipe: Connection, path: str) -> None:
    """Makes a batch for each number that comes."""
    while (number := pipe.recv()) is not None:
        if path and number == READ_AT:
            Path(path).read_bytes()
        pipe.send(b"a batch")


def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(theirs, sys.argv[1]))
    worker.start()
    with watched(worker_pid=worker.pid) as send:
        for number in range(STEPS):
            asked_s = time.perf_counter()
            ours.send(number)
            ours.recv()
            got_s = time.perf_counter()
            time.sleep(STEP_S)
            times = waiting(asked_s, got_s - asked_s, time.perf_counter() - got_s)
            send(columns(1, step=number, epoch=0, samples=8, warmup=number < 5, **times))
    ours.send(None)
    worker.join()


if __name__ == "__main__":
    main()
