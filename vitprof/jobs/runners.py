"""The two ways to run a job: in a child process, or in a thread of this one. Both yield the same messages."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, Protocol

import psutil

from vitprof.config import RunConfig
from vitprof.errors import JobError, JobStopped
from vitprof.home import open_log
from vitprof.jobs import left_behind
from vitprof.jobs.child import MAX_MESSAGE_BYTES
from vitprof.jobs.killed_jobs import OWNER, MemoryWitness, clear_temporary, owner_mark
from vitprof.measure.wire import SEND_EVERY_S, EventBuffer, Message, read_messages

CAN_FORK = sys.platform == "linux"
"""macOS ends a fork of a process that has loaded the system's math libraries; Windows has no fork."""
READY_S = 60.0
"""How long (s) loading PyTorch may take. From a slow disk it takes about 20 s."""
CHILD_EVERY_S = 0.05
FREE_BYTES = 2 << 30
"""Memory that must be free: the warm process takes 0.7 GB (PyTorch with CUDA; 0.4 GB of it private), which forks
share."""
OPENMP_SLEEPS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Variables that make waiting threads of OpenMP (GNU's, LLVM's and Intel's) sleep. They spin by default: beside one
busy program on two cores, a job then takes batches at half the rate (docs/results.md). OpenMP reads them as PyTorch is
loaded. OpenBLAS, OpenCV and DataLoader workers have a single thread in jobs."""
OPENMP_CHOICES = (*OPENMP_SLEEPS, "GOMP_SPINCOUNT", "KMP_LIBRARY")
ANSWER_S = 5.0
"""How long (s) the warm process may take to fork a job. It may be held up by a busy disk, and answer later."""
MOST_RENEWED = 3
"""How often in a row a warm process is replaced that has forked nothing: what ends it may end the next one, too."""


def command(module: str, *args: str) -> list[str]:
    return [sys.executable, "-m", module, *args]


def environment() -> dict[str, str]:
    """Returns the environment of a module's process, in which OpenMP's waiting threads sleep unless the user chose."""
    waiting = {} if any(name in os.environ for name in OPENMP_CHOICES) else OPENMP_SLEEPS
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (package_root, os.environ.get("PYTHONPATH")) if p)
    return {**waiting, **os.environ, "PYTHONPATH": path, OWNER: owner_mark()}


def wanted() -> bool:
    """Returns whether to keep a warm process: on Linux only, not with VITPROF_WARM=0, nor where memory is short."""
    return (
        CAN_FORK
        and os.environ.get("VITPROF_WARM") != "0"
        and psutil.virtual_memory().available >= FREE_BYTES
    )


def start_anew(log: BinaryIO) -> subprocess.Popen[bytes]:
    """Starts a process for a job from scratch; its standard error goes to `log`. Raises `OSError`."""
    child = command("vitprof.jobs.child")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        child, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True, env=environment()
    )
    left_behind.keep(process.pid)
    return process


class Launcher:
    """A starter of jobs' processes. From `warm` to `close` it keeps a process with PyTorch loaded, from which it forks
    jobs; they begin about 3 s sooner. Where there is none, or it does not answer, jobs are started from scratch. One
    that died, or has not answered by the next job, is replaced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_kept = False
        self._server: _Server | None = None
        self._replaced: list[_Server] = []
        """Servers that may answer no more, but tell how their jobs end."""
        self._n_renewed = 0

    def warm(self) -> Launcher:
        """Starts the warm process, unless there is one already, and returns at once."""
        with self._lock:
            self._is_kept = True
            self._start_server()
        return self

    def _start_server(self) -> None:
        if self._server is None and wanted():
            with contextlib.suppress(OSError):
                self._server = _Server()

    def wait(self, stop: threading.Event) -> None:
        """Waits until the warm process has loaded, which would disturb a job, or `stop` is set."""
        with self._lock:
            self._renew()
            server = self._server
        if server is not None:
            server.wait_loaded(stop)

    def _renew(self) -> None:
        """Replaces the warm process if it is gone, or has not answered."""
        if not self._is_kept:
            return
        if self._server is not None and self._server.is_lost and self._n_renewed < MOST_RENEWED:
            self._n_renewed += 1
            self._replaced.append(self._server)
            self._server = None
        self._start_server()
        for server in [each for each in self._replaced if not each.has_jobs]:
            server.close()
            self._replaced.remove(server)

    def start(self, log: BinaryIO) -> subprocess.Popen[bytes] | Fork:
        """Starts `vitprof.jobs.child` for a job; its standard error goes to `log`. Raises `OSError`."""
        with self._lock:
            server = self._server
        if server is not None and server.ready:
            with contextlib.suppress(OSError):
                process = server.fork(log)
                self._n_renewed = 0
                return process
        return start_anew(log)

    def close(self) -> None:
        """Ends the warm process; jobs go on. May be called again."""
        with self._lock:
            self._is_kept = False
            servers = self._replaced
            if self._server is not None:
                servers.append(self._server)
            self._server = None
            self._replaced = []
        for server in servers:
            server.close()


class _Server:
    """The fork server's process, and the thread that reads its answers. Raises `OSError` where it cannot be started."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command("vitprof.jobs.child", str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for this process, which ends it
                    pass_fds=(theirs.fileno(),),
                    env=environment(),
                )
            except OSError:
                self._socket.close()
                raise
        left_behind.keep(self._process.pid)
        self._changed = threading.Condition()
        self._loaded = False
        self._ended = False
        """Whether it is gone: the exit statuses of its jobs are not reported then."""
        self._numbers = itertools.count()
        self._given_up: set[int] = set()
        """The numbers of requests that had no answer in time: a late one is not taken for that to another request."""
        self._pids: dict[int, int] = {}
        """Request -> the process id of its job; 0 where none could be forked."""
        self._running: set[int] = set()
        self._codes: dict[int, int] = {}
        self._thread = threading.Thread(target=self._read, name="vitprof-launcher", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._socket.recv(MAX_MESSAGE_BYTES):
                answer = json.loads(message)
                with self._changed:
                    if "ready" in answer:
                        self._loaded = True
                    elif "pid" in answer:
                        self._take_answer(answer["number"], answer["pid"])
                    else:
                        self._running.discard(answer["ended"])
                        self._codes[answer["ended"]] = answer["code"]
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take_answer(self, number: int, pid: int) -> None:
        if number in self._given_up:  # the job has no standard input, and ends
            self._given_up.remove(number)
            return
        self._pids[number] = pid
        if pid:
            self._running.add(pid)

    @property
    def ready(self) -> bool:
        """Returns whether it can fork, as far as is known."""
        with self._changed:
            return self._loaded and not self._ended and not self._given_up

    @property
    def is_lost(self) -> bool:
        """Returns whether it is gone, or has not answered in time, nor since."""
        with self._changed:
            return self._ended or bool(self._given_up)

    @property
    def has_jobs(self) -> bool:
        """Returns whether jobs run whose end it will tell."""
        with self._changed:
            return bool(self._running) and not self._ended

    def wait_loaded(self, stop: threading.Event) -> None:
        """Waits until the server has loaded or ended, until `stop` is set, or for `READY_S`."""
        until = time.monotonic() + READY_S
        with self._changed:
            while not (self._loaded or self._ended or stop.is_set() or time.monotonic() > until):
                self._changed.wait(CHILD_EVERY_S)

    def fork(self, log: BinaryIO) -> Fork:
        """Returns the process of a forked job. Raises `OSError` where the server does not answer or cannot fork."""
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        number = next(self._numbers)
        request = {"number": number, "directory": os.getcwd(), "environment": environment()}
        try:
            descriptors = [theirs_in, theirs_out, log.fileno()]
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            pid = self._answer(number)
        except OSError:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return Fork(self, pid, os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb"))

    def _answer(self, number: int) -> int:
        """Waits at most `ANSWER_S` for the process id of a job. Raises `OSError` where none comes."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._pids or self._ended, ANSWER_S)
            pid = self._pids.pop(number, None)
            if pid is None:
                self._given_up.add(number)
                raise OSError("the process that forks jobs does not answer")
        if not pid:
            raise OSError("no process can be forked")
        return pid

    def code(self, pid: int, wait_s: float = 0.0) -> int | None:
        """Returns the exit status of `pid`, for which it waits at most `wait_s` seconds; None while it runs."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes, wait_s)
            code = self._codes.pop(pid, None)
            ended = self._ended
        return UNKNOWN if code is None and ended and not psutil.pid_exists(pid) else code

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._socket.close()


UNKNOWN = 256
"""The exit status of a fork whose server died first. No process has it."""


class Fork:
    """The process of a forked job, with the part of `subprocess.Popen` that a job needs."""

    def __init__(self, server: _Server, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._server = server
        self._code: int | None = None

    def poll(self, wait_s: float = 0.0) -> int | None:
        if self._code is None:
            self._code = self._server.code(self.pid, wait_s)
        return self._code

    def wait(self) -> int:
        while (code := self.poll(CHILD_EVERY_S)) is None:
            pass
        return code


Start = Callable[[BinaryIO], subprocess.Popen[bytes] | Fork]
PIPE_BYTES = 1 << 20


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

    def __init__(self, config: RunConfig, log: Path, start: Start = start_anew) -> None:
        self._log = log
        self._broken = ""
        self._inbox: queue.Queue[Message] = queue.Queue()
        with open_log(log) as log_file:
            self._process = start(log_file)
        self.pid = self._process.pid
        self._memory = MemoryWitness(self.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        # another system, or over the user's pipe quota: the default
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reader = threading.Thread(
            target=self._read, name=f"vitprof-reader-{self.pid}", daemon=True
        )
        self._reader.start()
        with contextlib.suppress(BrokenPipeError):  # it died at once: close() says why
            self._stdin.write(json.dumps(config.to_dict()).encode() + b"\n")
            self._stdin.flush()

    def _read(self) -> None:
        try:
            for message in read_messages(self._stdout):
                self._inbox.put(message)
        except ValueError as error:  # what follows cannot be read either, and a pipe that is not emptied blocks the job
            self._broken = str(error)
            self.kill()

    def messages(self) -> Iterator[Message | None]:
        while self._process.poll() is None or self._reader.is_alive():
            self._memory.sample()
            if self._process.poll() is not None:
                self.kill()  # a worker that outlived the child would hold the pipe open
            try:
                yield self._inbox.get(timeout=SEND_EVERY_S)
            except queue.Empty:
                yield None
        while not self._inbox.empty():
            yield self._inbox.get_nowait()

    def ask_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def kill(self) -> None:
        # gone; macOS says "not permitted" for a zombie
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> str:
        self.ask_stop()
        code = self._process.wait()
        self.kill()  # workers that outlived the child
        clear_temporary()  # a job that was killed could not remove its own
        self._reader.join()
        self._stdout.close()
        if self._broken:
            return f"the job's process was ended because it sent something that is not a message ({self._broken})"
        if code == UNKNOWN:
            return f"the job's process ended, and so had the one that tells how; its log is {self._log}"
        if code < 0:
            reason = f": {self._memory.killed_words()}" if -code == signal.SIGKILL else ""
            return f"the job's process was ended by {signal.Signals(-code).name}{reason}; its log is {self._log}"
        last = (
            self._log.read_text(errors="replace").strip().splitlines()[-1:]
            if self._log.exists()
            else []
        )
        return f"the job's process ended with exit status {': '.join([str(code), *last])}; its log is {self._log}"


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
                # a kill that came when the job had just ended by itself
                with contextlib.suppress(JobStopped):
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
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(JobStopped)
            )

    def close(self) -> str:
        self._thread.join()
        return "the job's thread ended without a last message"


def start_runner(config: RunConfig, log: Path, launcher: Launcher, stop: threading.Event) -> Runner:
    """Starts a job with the isolation of its config; a process prints to `log`. Raises `JobError` without a process."""
    launcher.wait(stop)
    if config.isolation == "thread":
        return ThreadRunner(config)
    try:
        return ProcessRunner(config, log, launcher.start)
    except OSError as error:
        raise JobError(f"the job's process could not be started: {error}") from error
