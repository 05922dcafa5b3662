"""A job in its own process: `python -m vitprof.jobs.child`; with the descriptor of a socket, one that forks jobs.

A job's config arrives as one line of JSON on standard input, which then stays open: its end means
stop. So a child never outlives the program that started it, even if that is killed. Messages leave
on the descriptor that was standard output. What libraries print goes to standard error instead,
which the parent keeps as a log.

The process that forks jobs has PyTorch loaded and a single thread, so that forking is safe. It
calls nothing of PyTorch's CUDA, so that its forks can use it: even `torch._C._cuda_getArchFlags`
makes `torch.cuda.init` fail in every later fork. `jobs.runners` holds the other end of its socket.
A request is JSON with three descriptors, which become the job's standard input, output and error.
The answer is the job's process id, and later its exit status. The end of the socket ends the
process. multiprocessing's fork server would do, but it shares its socket with the job: a DataLoader
that starts workers by "forkserver" would get siblings of the job instead of children, which Stop
would not end and telemetry would not count.
"""

import atexit
import contextlib
import gc
import json
import os
import random
import select
import selectors
import signal
import socket
import sys
import threading
import traceback
from typing import Any, BinaryIO, NoReturn

import numpy as np

from vitprof.config import RunConfig
from vitprof.datasets import ahead
from vitprof.engine import without_collections
from vitprof.errors import (
    UNREADABLE_SAMPLE,
    JobStopped,
    SampleError,
    VitprofError,
    one_line,
)
from vitprof.jobs import rank_processes
from vitprof.jobs.killed_jobs import is_out_of_memory, mark_multiprocessing, out_of_memory_words
from vitprof.measure.wire import SEND_EVERY_S, EventBuffer, write_message
from vitprof.program import missing_words, program
from vitprof.telemetry.visible import show_only

ORPHAN_GRACE_S = 5.0
"""How long (s) a child may take to stop before it ends itself. A parent that is still alive kills it sooner."""
MAX_MESSAGE_BYTES = 1 << 20
"""The most bytes of a request to fork."""
N_DESCRIPTORS = 3
"""The descriptors that come with a request: the job's standard input, output and error."""


def send(buffer: EventBuffer, stream: BinaryIO, finished: threading.Event) -> None:
    """Writes the buffer's messages to the pipe until the job has `finished`, in a thread of its own: a full pipe never
    blocks the training loop.
    """
    # the parent is gone; the end of standard input stops the job
    with contextlib.suppress(OSError):
        last = False
        while not last:
            last = finished.wait(SEND_EVERY_S)
            for message in buffer.drain():
                write_message(stream, message)
            stream.flush()


def watch_stdin(stop: threading.Event, finished: threading.Event) -> None:
    """Sets `stop` when standard input ends; ends the process if the job has not `finished` `ORPHAN_GRACE_S` later."""
    while os.read(0, 4096):
        pass
    stop.set()
    if not finished.wait(ORPHAN_GRACE_S):
        os._exit(1)


def run_job(
    config: RunConfig, buffer: EventBuffer, stop: threading.Event, *, alone: bool = False
) -> BaseException | None:
    """Trains, and puts the job's last message into `buffer`.

    `alone`: the process has no other job, so that the GPUs which this one does not use are hidden.
    Returns the error that ended the job. A process that is to end by itself must keep it, with the
    job's tensors: PyTorch aborts the process where memory that it pinned for a failed GPU is freed,
    before the job's last line is sent.
    """
    try:
        if config.ranks > 1:
            completed = rank_processes.train(config, buffer, stop)
        else:
            if "vitprof.engine.train" not in sys.modules:
                ahead.begin(config.dataset)
            with without_collections() if alone else contextlib.nullcontext():
                from vitprof.engine.train import train
            if alone:
                show_only(config.device)
            completed = train(config, buffer, stop.is_set)
        buffer.end("done" if completed else "stopped")
    except JobStopped:
        buffer.end("stopped")
    except ModuleNotFoundError as error:
        traceback.print_exc()
        buffer.end("failed", missing_words(error))
    except (Exception, SystemExit) as error:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        message = one_line(error)
        if is_out_of_memory(error):
            message = out_of_memory_words(message)
        if isinstance(error, SampleError):
            buffer.facts({UNREADABLE_SAMPLE: True})
        buffer.end("failed", message)
        return error
    return None


def work() -> None:
    """Runs the job whose config comes on standard input, and ends the process."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    line = b""
    # byte by byte: whatever is read beyond the line would be missing from standard input later
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.stderr.write(
                f"vitprof.jobs.child is started by vitprof itself; use {program()} run\n"
            )
            leave(1)
        line += part
    config = RunConfig.from_dict(json.loads(line))
    stop = threading.Event()
    finished = threading.Event()
    threading.Thread(
        target=watch_stdin, args=(stop, finished), name="vitprof-stdin", daemon=True
    ).start()
    mark_multiprocessing()
    buffer = EventBuffer()
    sender = threading.Thread(
        target=send, args=(buffer, channel, finished), name="vitprof-sender", daemon=True
    )
    sender.start()
    # kept until the process ends, see `run_job`
    _failure = run_job(config, buffer, stop, alone=True)
    finished.set()
    sender.join()
    leave()


def leave(status: int = 0) -> NoReturn:
    """Runs the exit handlers and ends the process: tearing down an interpreter with PyTorch takes 1.2 s of a core."""
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)


# the process that forks jobs


def load() -> None:
    """Imports what jobs need: 1.7 s of a core for PyTorch, 1 s more for torchvision."""
    # Imports leave hardly any garbage, and collections took a sixth of the time. A collection in a
    # fork would copy the pages of all that was imported.
    with without_collections():
        import torchvision.datasets
        import torchvision.transforms  # noqa: F401

        import vitprof.engine.train  # noqa: F401


def serve(connection: socket.socket) -> bool:
    """Answers requests until the socket ends. Returns False in this process, True in each fork."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # without a handler the signal would not wake `select`
    signal.signal(signal.SIGCHLD, lambda *_: None)
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
                message, descriptors, *_ = socket.recv_fds(
                    connection, MAX_MESSAGE_BYTES, N_DESCRIPTORS
                )
                if not message:
                    return False
                request = json.loads(message)
                if _forks(connection, request, descriptors):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_read)
                    os.close(wake_write)
                    _become_a_job(request, descriptors)
                    _send(connection, {"number": request["number"], "pid": os.getpid()})
                    return True
                for descriptor in descriptors:
                    os.close(descriptor)


def _forks(connection: socket.socket, request: dict[str, Any], descriptors: list[int]) -> bool:
    """Forks for a request, unless nobody waits for that any more. Returns True in the fork."""
    try:
        if not _is_given_up(descriptors[0]):
            return os.fork() == 0
    except OSError:
        pass
    _send(connection, {"number": request["number"], "pid": 0})
    return False


def _is_given_up(standard_input: int) -> bool:
    """Returns whether the other end of a job's standard input is closed: its config will not come."""
    poll = select.poll()
    poll.register(standard_input, select.POLLHUP)
    return bool(poll.poll(0))


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.send(json.dumps(answer).encode())


def _send_exits(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _send(connection, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _become_a_job(request: dict[str, Any], descriptors: list[int]) -> None:
    os.setsid()
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    # otherwise every fork would begin with the same global state
    np.random.seed()
    # extension modules complain about objects that are not freed at exit
    atexit.register(gc.unfreeze)


def main() -> None:
    """Runs a job, or forks jobs for the socket whose descriptor is the command's argument."""
    if len(sys.argv) > 1:
        with contextlib.closing(socket.socket(fileno=int(sys.argv[1]))) as connection:
            load()
            if not serve(connection):
                return
    work()


if __name__ == "__main__":
    main()
