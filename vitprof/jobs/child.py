"""A job in a process of its own: `python -m vitprof.jobs.child`.

The config comes as one line of JSON on standard input, which then stays open: its end means stop. So a child never
outlives the program that started it, even one that was killed. Messages go out on the descriptor that was standard
output; prints of libraries go to standard error instead, which the parent keeps as a log.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import traceback
from typing import BinaryIO

from vitprof.config import RunConfig
from vitprof.engine.protocol import SEND_EVERY_S, EventBuffer, write_message
from vitprof.errors import JobStopped, VitprofError, one_line
from vitprof.jobs.memory import is_out_of_memory, out_of_memory_words
from vitprof.jobs.orphans import mark_multiprocessing
from vitprof.program import missing_words, program
from vitprof.telemetry import show_only

ORPHAN_GRACE_S = 5.0
"""How long a child that has been told to stop may take before it ends itself. A living parent kills it sooner."""


class Sender:
    """A thread that writes what is in the buffer to the pipe, so that a full pipe never blocks the training loop."""

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
        except OSError:  # nobody reads any more: the parent is gone, and standard input's end says so too
            self._closing.set()

    def close(self) -> None:
        """Sends what is left."""
        self._closing.set()
        self._thread.join()
        self._send()


def watch_stdin(stop: threading.Event, finished: threading.Event) -> None:
    """Sets `stop` when standard input ends; ends the process if the job then does not."""
    while os.read(0, 4096):
        pass
    stop.set()
    if not finished.wait(ORPHAN_GRACE_S):
        os._exit(1)


def run_job(config: RunConfig, buffer: EventBuffer, stop: threading.Event, *, alone: bool = False) -> None:
    """Trains and puts the job's last message into `buffer`, whatever happens.

    `alone`: this process is the job's own, so it may hide the GPUs that the job does not use.
    """
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
        said = one_line(error)
        buffer.end("failed", out_of_memory_words(said) if is_out_of_memory(error) else said)


def main() -> None:
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(0, 1)):
            sys.exit(f"vitprof.jobs.child is started by vitprof itself; use {program()} run")
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


def leave() -> None:
    """Ends the process. Tearing down the interpreter with PyTorch in it would take 1.2 s of a core, and the next job
    waits for that.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
