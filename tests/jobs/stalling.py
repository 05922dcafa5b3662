"""A script that passes for a watched training with one worker process, without PyTorch, and tells of its real times.

The first argument is a file: from the 40th step on, once, the worker reads it to its end.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from vitprof.measure.wire import Note, write_message
from vitprof.recording.columns import STEP_COLUMNS

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
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["VITPROF_WATCH_SOCKET"])
        with connection.makefile("wb") as stream:
            facts = {"device": "cpu", "watched": {}, "pid": os.getpid(), "cpu_count": os.cpu_count()}
            write_message(stream, Note("environment", facts | {"worker_pid": worker.pid}))
            write_message(stream, Note("stage", {"name": "training", "fraction": 0.0, "message": ""}))
            for number in range(STEPS):
                asked_s = time.perf_counter()
                ours.send(number)
                ours.recv()
                got_s = time.perf_counter()
                time.sleep(STEP_S)
                took_s, wait_s = time.perf_counter() - got_s, got_s - asked_s
                known = {"step": number, "t_start_s": asked_s, "data_wait_s": wait_s, "exposed_wait_s": wait_s}
                known |= {"gap_s": wait_s, "compute_start_s": got_s, "compute_s": took_s, "step_s": wait_s + took_s}
                known |= {"h2d_s": 0.0, "h2d_start_s": got_s, "host_s": took_s, "samples": 8, "epoch": 0, "rank": 0}
                known["warmup"] = float(number < 5)
                row = [float(known.get(name, np.nan)) for name in STEP_COLUMNS]
                write_message(stream, dict(zip(STEP_COLUMNS, np.array(row)[:, None], strict=True)))
                stream.flush()
    ours.send(None)
    worker.join()


if __name__ == "__main__":
    main()
