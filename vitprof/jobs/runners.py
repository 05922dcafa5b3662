"""The two ways to run a job: in a child process, or in a thread of this one. Both yield the same messages."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from vitprof.config import RunConfig
from vitprof.errors import JobError, JobStopped
from vitprof.home import open_log
from vitprof.jobs.killed_jobs import MemoryWitness, clear_temporary
from vitprof.jobs.launcher import ChildProcess, Launcher, start_anew
from vitprof.measure.wire import SEND_EVERY_S, EventBuffer, Message, read_messages

PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031  # Linux's fcntl.h; Python's fcntl names it only from 3.10 on Linux


class Runner(Protocol):
    """A running job."""

    pid: int
    """The process that, with its descendants, is the job."""

    def messages(self) -> Iterator[Message | None]:
        """Yields the job's messages until it has ended; None at least every 0.1 s when there are none."""

    def ask_stop(self) -> None:
        """Asks the job to stop after its current step."""

    def kill(self) -> None:
        """Ends the job now, whatever it is doing."""

    def close(self) -> str:
        """Cleans up after the last message. Returns the reason, in one line, in case the job ended without one."""


class ProcessRunner:
    """A job in a process group of its own, so that its workers can be ended with it."""

    def __init__(self, config: RunConfig, log: Path, start: Callable[[BinaryIO], ChildProcess] = start_anew) -> None:
        self._log = log
        self._broken = ""
        self._inbox: queue.Queue[Message] = queue.Queue()
        with open_log(log) as log_file:
            self._process = start(log_file)
        self.pid = self._process.pid
        self._memory = MemoryWitness(self.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if sys.platform == "linux":
            import fcntl

            with contextlib.suppress(OSError):  # over the user's pipe quota: the default size works too
                fcntl.fcntl(self._process.stdout, F_SETPIPE_SZ, PIPE_BYTES)
        self._reader = threading.Thread(target=self._read, name=f"vitprof-reader-{self.pid}", daemon=True)
        self._reader.start()
        with contextlib.suppress(BrokenPipeError):  # it died at once: close() says why
            self._process.stdin.write(json.dumps(config.to_dict()).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for message in read_messages(self._process.stdout):
                self._inbox.put(message)
        except ValueError as error:  # what follows cannot be read either, and a pipe that is not emptied blocks the job
            self._broken = str(error)
            self.kill()

    def messages(self) -> Iterator[Message | None]:
        while self._process.poll() is None or self._reader.is_alive():
            self._memory.look()
            if self._process.poll() is not None:
                self.kill()  # a worker that outlived the child would hold the pipe open
            try:
                yield self._inbox.get(timeout=SEND_EVERY_S)
            except queue.Empty:
                yield None
        while not self._inbox.empty():
            yield self._inbox.get_nowait()

    def ask_stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says "not permitted" for a zombie
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> str:
        self.ask_stop()
        code = self._process.wait()
        self.kill()  # workers that outlived the child
        clear_temporary()  # a job that was killed could not remove its own
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._broken:
            return f"the job's process was ended because it sent something that is not a message ({self._broken})"
        if code < 0:
            reason = f": {self._memory.killed_words()}" if -code == signal.SIGKILL else ""
            return f"the job's process was ended by {signal.Signals(-code).name}{reason}; its log is {self._log}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:] if self._log.exists() else []
        return (
            f"the job's process ended with exit status {code}{': ' + last[0] if last else ''}; its log is {self._log}"
        )


class ThreadRunner:
    """A job in a thread of this process. It stops no earlier than after its current step."""

    def __init__(self, config: RunConfig) -> None:
        from vitprof.jobs.child import run_job

        self.pid = os.getpid()
        self._buffer = EventBuffer()
        self._stop = threading.Event()
        self._ended = threading.Event()

        def work() -> None:
            try:
                with contextlib.suppress(JobStopped):  # a kill that came when the job had just ended by itself
                    run_job(config, self._buffer, self._stop)
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=work, name="vitprof-job", daemon=True)
        self._thread.start()

    def messages(self) -> Iterator[Message | None]:
        while self._thread.is_alive() and not self._ended.wait(SEND_EVERY_S):
            yield from self._buffer.drain()
            yield None
        yield from self._buffer.drain()

    def ask_stop(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        """Raises `JobStopped` in the thread at its next Python instruction: a thread cannot be killed."""
        if self._thread.ident is not None and not self._ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(JobStopped))

    def close(self) -> str:
        self._thread.join()
        return "the job's thread ended without a last message"


def start_runner(config: RunConfig, log: Path, launcher: Launcher, stop: threading.Event) -> Runner:
    """Starts a job with the isolation of its config, once `launcher` has loaded or `stop` is set; a process prints to
    `log`. Raises `JobError` where no process can be started.
    """
    launcher.wait(stop)
    if config.isolation == "thread":
        return ThreadRunner(config)
    try:
        return ProcessRunner(config, log, launcher.start)
    except OSError as error:
        raise JobError(f"the job's process could not be started: {error}") from error
