"""Starts the processes of jobs: as forks of a warm process that has PyTorch loaded, or each from scratch."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, BinaryIO, Protocol

import psutil

from vitprof.jobs.child import MAX_MESSAGE_BYTES
from vitprof.jobs.killed_jobs import OWNER, owner_mark

CAN_FORK = sys.platform == "linux"
"""macOS ends a fork of a process that has loaded the system's math libraries; Windows has no fork."""
READY_S = 60.0
"""How long (s) loading PyTorch may take. From a slow disk it takes about 20 s."""
POLL_S = 0.05
FREE_BYTES = 2 << 30
"""Memory that must be free: the warm process takes 0.7 GB (PyTorch with CUDA; 0.4 GB of it private), which forks
share."""
OPENMP_SLEEPS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Variables that make waiting threads of OpenMP (GNU's, LLVM's and Intel's) sleep. They spin by default: beside one
busy program on two cores, a job then takes batches at half the rate (docs/results.md). OpenMP reads them as PyTorch is
loaded. OpenBLAS, OpenCV and DataLoader workers have a single thread in jobs."""
OPENMP_CHOICES = (*OPENMP_SLEEPS, "GOMP_SPINCOUNT", "KMP_LIBRARY")
"""Variables by which a user chooses how threads of OpenMP wait."""
ANSWER_S = 5.0
"""How long (s) a fork may take; about 10 ms is usual."""


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that a job's process offers."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None:
        """Returns the exit status (-N: ended by signal N); None while it runs."""

    def wait(self) -> int:
        """Waits for the process to end and returns its exit status."""


def command(module: str, *args: str) -> list[str]:
    """Returns the command that runs a module of this package."""
    return [sys.executable, "-m", module, *args]


def environment() -> dict[str, str]:
    """Returns the environment for a process that runs a module of this package, wherever the package is installed.

    Threads of OpenMP sleep while they wait in it, unless the user chose how they wait.
    """
    waiting = {} if any(name in os.environ for name in OPENMP_CHOICES) else OPENMP_SLEEPS
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (package_root, os.environ.get("PYTHONPATH")) if p)
    return {**waiting, **os.environ, "PYTHONPATH": path, OWNER: owner_mark()}


def wanted() -> bool:
    """Returns whether to keep a warm process: on Linux only, not with VITPROF_WARM=0, nor where memory is short."""
    return CAN_FORK and os.environ.get("VITPROF_WARM") != "0" and psutil.virtual_memory().available >= FREE_BYTES


def start_anew(log: BinaryIO) -> ChildProcess:
    """Starts a process for a job from scratch; its standard error goes to `log`. Raises `OSError`."""
    return subprocess.Popen(
        command("vitprof.jobs.child"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        env=environment(),
    )


class Launcher:
    """A starter of jobs' processes. From `warm` to `close` it keeps a process with PyTorch loaded, and forks jobs from
    it.

    A job then begins about 3 s sooner. A warm process that is waiting takes no CPU time. Where there is none, or it
    died, jobs are started from scratch; they only begin later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def warm(self) -> Launcher:
        """Starts the warm process, unless there is one already, and returns at once."""
        with self._lock:
            if self._server is None and wanted():
                with contextlib.suppress(OSError):
                    self._server = _Server()
        return self

    def wait(self, stop: threading.Event) -> None:
        """Waits until the warm process has loaded, which would disturb a job, or `stop` is set."""
        if (server := self._server) is not None:
            server.wait_ready(stop)

    def start(self, log: BinaryIO) -> ChildProcess:
        """Starts `vitprof.jobs.child` for a job; its standard error goes to `log`. Raises `OSError` where it cannot be
        started.
        """
        with self._lock:
            if self._server is not None and self._server.ready:
                with contextlib.suppress(OSError):
                    return self._server.fork(log)
        return start_anew(log)

    def close(self) -> None:
        """Ends the warm process; jobs go on. May be called again."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None


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
        self._ready = threading.Event()
        self.ended = threading.Event()
        """Set when it is gone: the exit statuses of its jobs are no longer reported."""
        self._pids: queue.Queue[int] = queue.Queue()
        self._codes: dict[int, int] = {}
        self._exits = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="vitprof-launcher", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._socket.recv(MAX_MESSAGE_BYTES):
                answer = json.loads(message)
                if "ready" in answer:
                    self._ready.set()
                elif "pid" in answer:
                    self._pids.put(answer["pid"])
                else:
                    with self._exits:
                        self._codes[answer["ended"]] = answer["code"]
                        self._exits.notify_all()
        self.ended.set()
        with self._exits:
            self._exits.notify_all()

    @property
    def ready(self) -> bool:
        """Returns whether the server can fork."""
        return self._ready.is_set() and not self.ended.is_set()

    def wait_ready(self, stop: threading.Event) -> None:
        """Waits until the server has loaded or ended, until `stop` is set, or for `READY_S`."""
        waited_s = 0.0
        while not (self._ready.wait(POLL_S) or self.ended.is_set() or stop.is_set() or waited_s > READY_S):
            waited_s += POLL_S

    def fork(self, log: BinaryIO) -> ChildProcess:
        """Returns the process of a forked job. Raises `OSError` where the server does not answer or cannot fork."""
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        request = json.dumps({"directory": os.getcwd(), "environment": environment()}).encode()
        try:
            socket.send_fds(self._socket, [request], [theirs_in, theirs_out, log.fileno()])
            pid = self._pids.get(timeout=ANSWER_S)
            if not pid:
                raise OSError("no process can be forked")
        except (OSError, queue.Empty) as error:
            os.close(stdin)
            os.close(stdout)
            self.close()  # a late answer would be taken for that to the next request
            raise OSError("the process that forks jobs does not answer") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return _Fork(self, pid, os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb"))

    def code(self, pid: int) -> int | None:
        """Returns the exit status of `pid`; None while it runs."""
        with self._exits:
            code = self._codes.get(pid)
        return UNKNOWN if code is None and self.ended.is_set() and not _lives(pid) else code

    def wait(self, timeout_s: float) -> None:
        """Waits until the server reports an exit status, or until `timeout_s` have passed."""
        with self._exits:
            self._exits.wait(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._socket.close()


UNKNOWN = 255
"""The exit status of a fork whose server died first."""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class _Fork:
    """The process of a forked job, see `ChildProcess`."""

    def __init__(self, server: _Server, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.code(self.pid)
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            self._server.wait(POLL_S)
        return code
