"""A job in its own process: `python -m vitprof.jobs.child`.

The config arrives as one line of JSON on standard input, which then stays open: its end means stop. So a child never
outlives the program that started it, even if that is killed. Messages leave on the descriptor that was standard
output; what libraries print goes to standard error instead, which the parent keeps as a log.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import traceback
from typing import BinaryIO, NoReturn

from vitprof.config import RunConfig
from vitprof.engine import without_collections
from vitprof.errors import JobStopped, VitprofError, one_line
from vitprof.jobs.memory import is_out_of_memory, out_of_memory_words
from vitprof.jobs.orphans import mark_multiprocessing
from vitprof.measure.wire import SEND_EVERY_S, EventBuffer, write_message
from vitprof.program import missing_words, program
from vitprof.telemetry.visible import show_only

ORPHAN_GRACE_S = 5.0
"""How long (s) a child may take to stop before it ends itself. A parent that is still alive kills it sooner."""


class Sender:
    """A thread that writes the buffer's messages to the pipe, so that a full pipe never blocks the training loop."""

    def __init__(self, buffer: EventBuffer, stream: BinaryIO) -> None:
        self._buffer = buffer
        self._stream = stream
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitprof-sender", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(SEND_EVERY_S):
            self._send()

    def _send(self) -> None:
        messages = self._buffer.drain()
        try:
            for message in messages:
                write_message(self._stream, message)
            if messages:
                self._stream.flush()
        except OSError:  # the parent is gone; the end of standard input stops the job
            self._closing.set()

    def close(self) -> None:
        """Ends the thread and sends what is left in the buffer."""
        self._closing.set()
        self._thread.join()
        self._send()


def watch_stdin(stop: threading.Event, finished: threading.Event) -> None:
    """Sets `stop` when standard input ends; ends the process if the job has not `finished` `ORPHAN_GRACE_S` later."""
    while os.read(0, 4096):
        pass
    stop.set()
    if not finished.wait(ORPHAN_GRACE_S):
        os._exit(1)


def run_job(config: RunConfig, buffer: EventBuffer, stop: threading.Event, *, alone: bool = False) -> None:
    """Trains, and puts the job's last message into `buffer`, whatever happens.

    `alone`: this process runs nothing but the job, so the GPUs that the job does not use may be hidden from it.
    """
    with without_collections() if alone else contextlib.nullcontext():
        from vitprof.engine.train import train

    try:
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
        buffer.end("failed", out_of_memory_words(message) if is_out_of_memory(error) else message)


def main() -> None:
    """Runs the job whose config comes on standard input, and ends the process."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(0, 1)):
            sys.stderr.write(f"vitprof.jobs.child is started by vitprof itself; use {program()} run\n")
            leave(1)
        line += part
    stop, finished = threading.Event(), threading.Event()
    threading.Thread(target=watch_stdin, args=(stop, finished), name="vitprof-stdin", daemon=True).start()
    mark_multiprocessing()
    buffer = EventBuffer()
    sender = Sender(buffer, channel)
    run_job(RunConfig.from_dict(json.loads(line)), buffer, stop, alone=True)
    finished.set()
    sender.close()
    leave()


def leave(status: int = 0) -> NoReturn:
    """Runs the exit handlers and ends the process with this exit status.

    Tearing down an interpreter that has loaded PyTorch takes 1.2 s of a core, and the next job would wait for it.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
