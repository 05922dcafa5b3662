"""A process that has PyTorch loaded and forks itself for each job: `python -m vitprof.jobs.fork_server FD`.

It has a single thread, so that forking is safe, and calls nothing of PyTorch's CUDA, so that its forks can use it: even
`torch._C._cuda_getArchFlags` makes `torch.cuda.init` fail in every later fork. `jobs.launcher` holds the other end of
its socket: a request is JSON with three descriptors, which become the job's standard input,
output and error. The answer is the job's process id, and later its exit status. The end of the socket ends the process.

multiprocessing's fork server would do, but it passes its socket on to the job: a DataLoader that starts workers by
"forkserver" would get siblings of the job instead of children, which Stop would not end and telemetry would not count.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
from typing import Any

import numpy as np

from vitprof.engine import without_collections
from vitprof.jobs import child

MAX_MESSAGE_BYTES = 1 << 20
N_DESCRIPTORS = 3


def load() -> None:
    """Imports what jobs need: 1.7 s of a core for PyTorch, 1 s more for torchvision."""
    with without_collections():
        import torchvision.datasets
        import torchvision.transforms  # noqa: F401

        import vitprof.engine.train  # noqa: F401


def serve(connection: socket.socket) -> bool:
    """Answers requests until the socket ends. Returns False here, and True in each fork."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the signal would not wake `select`
    signal.set_wakeup_fd(wake_write)
    _send(connection, {"ready": True})
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _send_exits(connection)
            if connection in ready:
                message, descriptors, *_ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, N_DESCRIPTORS)
                if not message:
                    return False
                if _forks(connection):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_read)
                    os.close(wake_write)
                    _become_a_job(json.loads(message), descriptors)
                    _send(connection, {"pid": os.getpid()})
                    return True
                for descriptor in descriptors:
                    os.close(descriptor)


def _forks(connection: socket.socket) -> bool:
    """Forks, and returns whether this is the fork; answers with process id 0 where the system refuses."""
    try:
        return os.fork() == 0
    except OSError:
        _send(connection, {"pid": 0})
        return False


def _send(connection: socket.socket, what: dict[str, Any]) -> None:
    connection.send(json.dumps(what).encode())


def _send_exits(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = end
            _send(connection, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _become_a_job(request: dict[str, Any], descriptors: list[int]) -> None:
    """Gives a fork the descriptors, directory and environment of the job, as a process started for it would have."""
    os.setsid()
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    np.random.seed()  # otherwise every fork would begin with the same global state
    atexit.register(gc.unfreeze)  # extension modules complain about objects that are not freed at exit


def main() -> None:
    """Serves on the socket whose descriptor is the command's argument; in a fork, runs the job."""
    with contextlib.closing(socket.socket(fileno=int(sys.argv[1]))) as connection:
        load()
        is_job = serve(connection)
    if is_job:
        child.main()


if __name__ == "__main__":
    main()
