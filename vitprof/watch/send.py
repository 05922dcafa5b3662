"""Sends what is known about a watched training to the command around the script, or to a collector started for it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitprof
from vitprof.descriptors import above_standard_streams
from vitprof.errors import one_line
from vitprof.measure.wire import EventBuffer, Note, write_message
from vitprof.program import program
from vitprof.watch.own_thread import OwnThread
from vitprof.watch.patching import SOCKET, say
from vitprof.watch.ranks import ALL_RANKS, job_key, local_rank, n_ranks, rank
from vitprof.watch.transport import NO_SIGNAL, SEND_LIMIT_S, connected_to

if TYPE_CHECKING:
    from vitprof.measure.step_columns import Columns
    from vitprof.watch.trackers import LiveLog
    from vitprof.watch.watcher import Watcher

START_LIMIT_S = 30.0
"""The same while the collector starts, which takes a second or two."""
COLLECTOR = (
    "import os, sys; os.fork() and os._exit(0); sys.path[:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from vitprof.jobs.collector import main; main()"
)
"""The collector detaches itself at once; modules in the current directory cannot hide those that it imports."""
SEND_FIRST_S = 0.02
"""How soon (s) to send the first steps, for a script that is killed or calls `os._exit`; each time then waits longer
than the one before, up to `SEND_EVERY_S`."""
SEND_EVERY_S = 0.5
"""How often (s) to send: each time takes 0.6 ms of CPU here and 0.4 ms in the receiver when caches are cold."""
END_LIMIT_S = 2.0
"""How long (s) a script may have to wait at a run's end for the rest to be sent, and again for the run's number."""


@dataclass(frozen=True)
class Wanted:
    """The wishes of a script that watches itself."""

    name: str
    quiet: bool
    """Whether to print no line at the end of the run that says where to find it."""


class Session(EventBuffer):
    """What is to be sent, a connection, and the thread that sends. No step ever waits for it."""

    def __init__(self, watcher: Watcher, send_steps: Callable[[], None]) -> None:
        """`send_steps` is called in the thread each time before it sends."""
        super().__init__()
        self._guard, self._forking, self._wanted = watcher.guard, watcher.forking, watcher.wanted
        self._send_steps = send_steps
        self._environment: dict[str, Any] = {}
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._thread = OwnThread(self._run, "vitprof-sender")
        self._known = threading.Event()
        """Set when the run's number is known, or that there is none."""
        self._last_start_s = -math.inf
        """When the last step began, on the clock of this process."""
        self._clock_stopped = False
        self._ended = False
        self._live: LiveLog | None = None
        """Writes to the script's experiment tracker, where that was asked for."""

    def begin(self, device: Any, loader: dict[str, Any]) -> None:
        """Connects, now that the train loader is known, and sends from here on. Raises `OSError`."""
        from vitprof.measure.devices import software  # needs PyTorch

        if self._wanted is not None:
            loader = {**loader, "name": self._wanted.name}
        self._connection = connect()
        facts = {
            "pid": os.getpid(),
            "device": device.name,
            **software(),
            "world_size": n_ranks() or 1,
            "rank": rank(),
        }
        facts["watched"] = loader
        if facts["world_size"] > 1:
            key = job_key() if os.environ.get(ALL_RANKS) else ""
            facts |= {"local_rank": local_rank(), "job": key, "began_unix_s": time.time()}
        self._environment = device.environment() | facts
        self.environment(self._environment)
        self.stage("training", 0.0)
        if (wanted := os.environ.get("VITPROF_WATCH_LOG_TO")) and not facts["rank"]:
            from vitprof.watch.trackers import LiveLog

            self._live = LiveLog(wanted, self._forking)
        self._thread.start()

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now, with this status and error; `begin_again` continues it."""
        if self._connection is None or not self._connection.collector or self._ended:
            return
        self._ended = True
        self.end(status, error)
        self._say_where()

    def begin_again(self) -> None:
        """Continues the run after `pause`."""
        if self._ended:
            self._ended = False
            self.environment(self._environment)
            self.stage("training", math.nan)

    def close(self) -> None:
        """Sends what is left, and closes the connection. May be called from any thread, and again."""
        connection, why = self._connection, self._guard.why
        if why:
            self.facts({"partly_watched": why})
        if connection is not None and not self._ended:
            ended_by = (
                None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
            )  # interactive: an old one
            self.pause(
                *(("failed", f"watching was given up ({why})") if why else how_it_ended(ended_by))
            )
            if (
                not connection.collector
            ):  # how the script ends is seen by the command; that watching has, is not
                self.end("done")
        self._closing.set()
        if not self._thread.is_current() and not self._thread.join(END_LIMIT_S):
            return  # it is stuck sending
        if (connection := self._connection) is not None:
            connection.limit(END_LIMIT_S)
            self._send(connection)
            self._connection = None
            connection.close()
        if self._live is not None:
            self._live.close()

    def forget(self) -> None:
        """Drops the connection in a forked process."""
        if self._connection is not None:
            self._connection.forget()
            self._connection = None

    def _say_where(self) -> None:
        if self._wanted is None or self._wanted.quiet or self._thread.is_current():
            return
        self._known.wait(END_LIMIT_S)
        if (connection := self._connection) is None or self._guard.why:
            return
        run = "" if connection.run is None else f" {connection.run}"
        what = f"recorded as run{run}" if run else "the run is being recorded"
        say(f"{what}: see {program()} runs{run}, or the dashboard")

    def _run(self) -> None:
        self._guard(self._send_until_closing)

    def _send_until_closing(self) -> None:
        wait_s = SEND_FIRST_S
        while (connection := self._connection) is not None and not self._closing.wait(wait_s):
            wait_s = min(1.25 * wait_s, SEND_EVERY_S)
            with self._forking:
                self._guard(self._send_steps)
                self._send(connection)

    def _are_timed(self, steps: Columns) -> bool:
        """Returns whether the clock told time during these steps and all before: it neither stood
        still nor ran backwards.

        A script that was started without the command may have replaced that of our modules, too.
        """
        starts_s = [self._last_start_s, *steps["t_start_s"].tolist()]
        if len(starts_s) == 1:
            return True
        self._last_start_s = starts_s[-1]
        runs_backwards = any(later < start for start, later in itertools.pairwise(starts_s))
        if runs_backwards or starts_s[0] == starts_s[-1]:
            self._clock_stopped = True
        return not self._clock_stopped

    def _send(self, connection: Connection) -> None:
        had_stopped = self._clock_stopped
        try:
            stream = (
                io.BytesIO()
            )  # the buffer of a socket's file would be flushed again in every forked process
            for message in self.drain():
                if not isinstance(message, Note) and not self._are_timed(message):
                    continue
                write_message(stream, message)
                if self._live is not None and not isinstance(message, Note):
                    self._live.add(message)
            connection.send(stream.getvalue())
            connection.listen()
            why = connection.refusal
            if connection.run is not None:
                self._known.set()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                connection.listen()  # the receiver may have said why it takes no more
            if isinstance(error, TimeoutError) and not connection.collector:
                error = OSError(
                    "nothing reads them: of several processes that train, the first is recorded"
                )
            why = connection.refusal or f"sending data failed: {error}"
        if why:
            self._connection = None
            self._known.set()
            connection.close()
            self._guard.give_up(why)
        elif self._clock_stopped and not had_stopped:
            self._guard.give_up("the script has replaced the clock, time.perf_counter")


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns status and error of a run whose loop ended with `error`, or without one."""
    if error is None:
        return "done", ""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", ""
    return "failed", f"the script ended with {one_line(error)}"


class Unheard:
    """A session that sends nothing, for a process whose steps are only counted: each of its methods does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Connection:
    """A connected socket. A script may close its descriptor, as daemons do with all, and open a file that gets the same
    number: nothing is done with that. Methods raise `OSError` where the receiver or the socket is gone.
    """

    def __init__(
        self, connected: socket.socket, starting: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._whole, self._starting = connected, starting
        self._is = os.fstat(connected.fileno())
        self._received = b""
        self.collector = starting is not None
        """Whether a collector receives the data; it does not see how the script ends, unless that is sent."""
        self.run: int | None = None
        self.refusal = ""
        """Why nothing is recorded; "" where it is."""
        self.limit(START_LIMIT_S if self.collector else SEND_LIMIT_S)

    @property
    def _socket(self) -> socket.socket:
        if self._whole.fileno() >= 0:
            try:
                ours = os.path.samestat(os.fstat(self._whole.fileno()), self._is)
            except OSError:
                ours = False
            if not ours:
                self._whole.detach()
                raise OSError("the script has closed the descriptor of vitprof's connection")
        return self._whole

    def send(self, data: bytes) -> None:
        self._socket.sendall(data, NO_SIGNAL)

    def limit(self, seconds: float | None) -> None:
        """Sets the time (s) after which sending or reading fails."""
        self._socket.settimeout(seconds)

    def listen(self) -> None:
        """Reads the collector's answer, if it is there and has not been read yet."""
        if not self.collector or self.run is not None or self.refusal:
            return
        if self._starting is not None and self._starting.poll() is not None:
            self._starting = None  # it has forked and runs on, detached
        limit_s = self._socket.gettimeout()
        self.limit(0.0)
        try:
            while b"\n" not in self._received:
                part = self._socket.recv(4096)
                if not part:
                    self.refusal = "the program that records the run has ended"
                    return
                self._received += part
        except BlockingIOError:
            return
        finally:
            self.limit(limit_s)
        answer: dict[str, Any] = json.loads(self._received.partition(b"\n")[0])
        self.run, self.refusal = answer.get("run"), str(answer.get("error", ""))
        self.limit(SEND_LIMIT_S)

    def close(self) -> None:
        """Closes the socket, in this process only."""
        if self._starting is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(SEND_LIMIT_S)
        with contextlib.suppress(OSError):
            self._socket.close()

    def forget(self) -> None:
        """Closes the socket in a forked process."""
        if self._starting is not None:
            self._starting.returncode = 0  # not this process's child: nothing is to be waited for
        self.close()


def connect() -> Connection:
    """Returns a connection to the command around the script, else at once to a new collector. Raises `OSError`."""
    if path := os.environ.get(SOCKET):
        return Connection(connected_to(path))
    ours, theirs = map(above_standard_streams, socket.socketpair(socket.AF_UNIX))
    root = str(Path(vitprof.__file__).resolve().parents[1])
    descriptor = theirs.fileno()
    try:
        with theirs:
            starting = subprocess.Popen(
                [sys.executable, "-c", COLLECTOR, root, str(descriptor), str(os.getpid())],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the script
            )
    except OSError:
        ours.close()
        raise
    return Connection(ours, starting)
