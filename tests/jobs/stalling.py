"""A script that passes for a watched training with one worker process, without PyTorch, and tells of its real times.
The first argument says what happens at the 40th step: the script ("main") or its worker ("worker") stops itself with
SIGSTOP, or the worker reads this file to its end."""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.jobs.sending import columns, waiting, watched

STEPS, STALLS_AT, STEP_S = 80, 40, 0.02


def stall(how: str) -> None:
    if how in ("main", "worker"):
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        Path(how).read_bytes()


def work(pipe: Connection, how: str) -> None:
    """Makes a batch for each number that comes."""
    while (number := pipe.recv()) is not None:
        if how != "main" and number == STALLS_AT:
            stall(how)
        pipe.send(b"a batch")


def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(theirs, sys.argv[1]))
    worker.start()
    how = sys.argv[1]
    with watched(worker_pid=worker.pid) as send:
        for number in range(STEPS):
            asked_s = time.perf_counter()
            ours.send(number)
            ours.recv()
            got_s = time.perf_counter()
            if how == "main" and number == STALLS_AT:
                stall(how)
            time.sleep(STEP_S)
            times = waiting(asked_s, got_s - asked_s, time.perf_counter() - got_s)
            send(columns(1, step=number, epoch=0, samples=8, warmup=number < 5, **times))
    ours.send(None)
    worker.join()


if __name__ == "__main__":
    main()
