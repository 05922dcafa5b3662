"""The program that records a script which watches itself (`vitprof.watch`).

It is started beside the script, which holds the other end of a socket. The script sends the
messages of any job, and may begin again after its "end", as when the cell of a notebook is run once
more. It receives a line of JSON with the run's number, or with the reason why there is no run. When
it ends, is killed or closes the socket, what it has sent is recorded, and this program ends too.
"""

import contextlib
import io
import itertools
import json
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import psutil

from vitprof.config.own_script import own_config
from vitprof.errors import VitprofError, one_line
from vitprof.home import temporary_prefix
from vitprof.jobs.event_files import EventFiles
from vitprof.jobs.nodes import Place, Places
from vitprof.jobs.supervisor import JobRecorder
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import SEND_EVERY_S, Message, Note, read_messages
from vitprof.recording import codec
from vitprof.store import RunStore
from vitprof.store.chunks import n_rows
from vitprof.store.new_run import NewRun
from vitprof.store.stored_run import is_alive
from vitprof.watch.core.messages import is_answer, of_process

MESSAGE_WAIT_S = 0.5
"""How long (s) to wait for a message before the script is looked for. Its end is seen at once."""


def listen(purpose: str) -> socket.socket:
    """Returns a socket that listens in a new directory of its own. Raises `OSError`."""
    # The path of a socket has 107 bytes at most (`man 7 unix`), which that of TMPDIR may fill.
    for parent in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        listening = socket.socket(socket.AF_UNIX)
        directory = ""
        try:
            directory = tempfile.mkdtemp(prefix=temporary_prefix(purpose), dir=parent)
            listening.bind(f"{directory}/socket")
            listening.listen()
            listening.settimeout(SEND_EVERY_S)
            return listening
        except OSError as error:
            listening.close()
            shutil.rmtree(directory, ignore_errors=True)
            failed = error
    raise failed


def connections(listening: socket.socket, closing: threading.Event) -> Iterator[socket.socket]:
    """Yields the connections to a listening socket until `closing` is set, and those that were made by
    then: a script may connect and end before anybody has looked.
    """
    while True:
        if closing.is_set():
            listening.settimeout(0.0)
        try:
            yield listening.accept()[0]
        except TimeoutError:
            continue
        except OSError:  # none waits, or the socket was closed
            return


class _AfterReset(socket.SocketIO):
    """Reads on after a reset: where a process ends with unread answers, what it has sent is still there."""

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except ConnectionResetError:
            return super().readinto(buffer)


def stream_of(connection: socket.socket) -> io.BufferedReader:
    """Returns what a process sends."""
    return io.BufferedReader(_AfterReset(connection, "rb"))


PLACED_WITHIN_S = 2.0
"""How long (s) a process that connected later waits for the one before to describe its training."""


class Listener:
    """Threads that read `connections` of processes that train, one for each connection.

    Read are the processes with a place among the ranks (`nodes.Places`). Any other process is left
    unread, and gives up.
    """

    def __init__(
        self,
        connections: Iterable[socket.socket],
        name: str,
        on_steps: Callable[[Columns], object] | None = None,
        events: EventFiles | None = None,
    ) -> None:
        """`on_steps` is called in the thread with finished steps as they arrive. `events` keeps the
        events of the processes.
        """
        self._connections = connections
        self._events = events
        self._on_steps = on_steps
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        self.places = Places(lambda facts: self.inbox.put(Note("facts", facts)))
        self.listens = True
        """Whether the process that is recorded may still send something."""
        self._over = threading.Event()
        self._readers: list[threading.Thread] = []
        self._thread = threading.Thread(
            target=self._run, name=f"vitprof-reader-{name}", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until no more messages can come, for at most `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        self._over.set()
        self._thread.join(timeout_s)
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        before = threading.Event()
        before.set()
        for connection in self._connections:
            name = f"{self._thread.name}-{len(self._readers)}"
            placed = threading.Event()
            reader = threading.Thread(
                target=self._read, args=(connection, before, placed), name=name, daemon=True
            )
            self._readers.append(reader)
            reader.start()
            before = placed
        for reader in self._readers:
            reader.join()
        self._end()

    def _end(self) -> None:
        self.listens = False
        self.places.close()
        self.inbox.put(None)

    def _read(
        self, connection: socket.socket, before: threading.Event, placed: threading.Event
    ) -> None:
        """Reads one connection until it ends.

        Its process gets its place when the connection `before` has one, at most `PLACED_WITHIN_S`
        later: the run is that of the process which connected first.
        """
        connection.setblocking(True)
        place: Place | None = None
        unplaced = list[Message]()
        with (
            connection,
            stream_of(connection) as stream,
            contextlib.suppress(ValueError, OSError),
        ):
            process, messages = self._described(read_messages(stream), placed)
            for message in messages:
                if is_answer(message):
                    with contextlib.suppress(
                        OSError
                    ):  # it has ended, and this is what it sent before
                        connection.sendall(json.dumps(message.values).encode() + b"\n")
                    continue
                if place is not None:
                    self._receive(message, place)
                    continue
                unplaced.append(message)
                if not isinstance(message, Note) or message.kind != "environment":
                    continue
                before.wait(PLACED_WITHIN_S)
                place = self.places.place(message.values, process)
                placed.set()
                if place is None:
                    # unread, so that sending fails after a while with a line that says why
                    self._over.wait()
                    return
                uuid = message.values.get("gpu_uuid")
                if uuid and place.rank != self.places.first:
                    self.inbox.put(Note("gpu", {"uuid": uuid}))
                if place.start and place.rank == self.places.first:
                    self._tell_restarts(message.values, goes_on=place != self.places.begun_by)
                for earlier in unplaced:
                    self._receive(earlier, place)
        placed.set()
        if place is not None and self.places.leave(place):
            self._end()

    def _described(
        self, messages: Iterator[Message], placed: threading.Event
    ) -> tuple[dict[str, Any], Iterator[Message]]:
        """Returns what a process says of itself as it connects, {} where it does not, and its messages; of
        one that sends its events, what they mean.
        """
        first = next(messages, None)
        if first is None:
            return {}, messages
        if not isinstance(first, Note) or first.kind != "process":
            return {}, itertools.chain([first], messages)
        process = first.values
        if process["world_size"] > 1:
            self.inbox.put(Note("rank", {"rank": process["rank"], "pid": process["pid"]}))
        if self._events is not None:
            messages = self._events.keep(process, messages)
        if not process["recorded"]:
            placed.set()
        meanings = of_process(process, messages)
        if not process["recorded"]:
            # the answers to its questions alone
            meanings = (meaning for meaning in meanings if is_answer(meaning))
        return process, meanings

    def _tell_restarts(self, environment: Mapping[str, Any], *, goes_on: bool) -> None:
        """Tells that the launcher has started the training again; `goes_on`: in a run that has begun."""
        self.listens = True
        restarts = {
            "restarts": self.places.n_restarts,
            "restarted_at": list(self.places.steps.restarted_at),
        }
        self.inbox.put(Note("restarted", restarts))
        if not goes_on:
            return
        self.inbox.put(Note("rank", {"rank": self.places.first, "pid": environment["pid"]}))
        self.inbox.put(Note("stage", {"name": "training", "fraction": None, "message": ""}))

    def _receive(self, message: Message, place: Place) -> None:
        is_first = place.rank == self.places.first
        if isinstance(message, Note):
            note = self._of_run(message, place) if is_first else None
            if note is not None:
                self.inbox.put(note)
            return
        steps = self.places.steps.numbered(message, place.start)
        if steps is None:
            return
        if not is_first:
            self.inbox.put({**steps, "rank": np.full(n_rows(steps), float(place.rank))})
            return
        self.inbox.put(steps)
        if self._on_steps is not None:
            self._on_steps(steps)

    def _of_run(self, note: Note, place: Place) -> Note | None:
        """Returns a note as one of the run; None where that has begun already, and is started again."""
        if note.kind == "facts":
            return Note("facts", self.places.steps.facts(note.values))
        begins = note.kind in ("environment", "stage")
        return None if begins and place != self.places.begun_by else note


LOST = "the training process closed its connection to vitprof, or ended, without a last message"
GONE = "the script ended, or closed its connection to vitprof, without a last message"


class ScriptRunner:
    """A running script that this program did not start and does not end."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._listener = Listener([connection], str(pid))
        self._first: list[Message] = []
        """The messages up to and including the "environment", which describes the training."""
        self._started = 0.0
        with contextlib.suppress(psutil.Error):
            self._started = psutil.Process(pid).create_time()

    def begins(self) -> dict[str, Any] | None:
        """Waits for the description of a training ("environment") and returns it; None where none will come."""
        while True:
            message = self._get()
            if message is None and self._is_over():
                return None
            if message is not None:
                self._first.append(message)
            if isinstance(message, Note) and message.kind == "environment":
                return message.values

    def messages(self) -> Iterator[Message | None]:
        while True:
            if self._first:
                message: Message | None = self._first.pop(0)
            else:
                message = self._get()
            if message is None and self._is_over():
                # a process that is killed closes its connection before it is gone
                time.sleep(MESSAGE_WAIT_S)
                if self._lives():
                    yield Note("facts", {"partly_watched": LOST})
                yield Note("end", {"status": "failed", "error": GONE})
                return
            yield message
            if isinstance(message, Note) and message.kind == "end":
                return

    def ask_stop(self) -> None:
        """Does nothing: vitprof does not end a script that it did not start."""

    kill = ask_stop

    def close(self) -> str:
        return GONE

    def reply(self, **values: object) -> None:
        """Sends `values` to the script as a line of JSON, if it is still listening."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(values).encode() + b"\n")

    def _get(self) -> Message | None:
        try:
            return self._listener.inbox.get(timeout=MESSAGE_WAIT_S)
        except queue.Empty:
            return None

    @property
    def over(self) -> bool:
        """Returns whether the script has ended (a process that it left behind may hold the socket), or hung up."""
        return not (self._listener.listens and self._lives())

    def _is_over(self) -> bool:
        return self.over and self._listener.inbox.empty()

    def _lives(self) -> bool:
        return is_alive(socket.gethostname(), self.pid, self._started)


def record(runner: ScriptRunner) -> None:
    """Records everything that the script trains as one run. Raises `VitprofError`."""
    # else at the first write, during training
    threading.Thread(target=codec.arrow, name="vitprof-imports").start()
    described = runner.begins()
    if described is None:
        return
    new = NewRun.of(own_config(described["watched"]["name"]))

    def reply() -> None:
        refused = recorder.outbox.refused
        # 0 while the store is unavailable: the script need not wait for the number
        runner.reply(**({"error": refused} if refused else {"run": recorder.run_id}))

    with contextlib.closing(RunStore(opens=False)) as store:
        recorder = JobRecorder(store, new, threading.Event(), start=lambda: runner, on_news=reply)
        try:
            while described is not None:
                recorder.run()
                described = runner.begins()
        finally:
            recorder.leave()


def main() -> None:
    """Records a script. The command's arguments are the descriptor of its socket and its process id."""
    runner = ScriptRunner(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    try:
        record(runner)
    except VitprofError as error:
        runner.reply(error=one_line(error))
    except Exception as error:  # nobody sees this program's standard error
        runner.reply(error=f"{type(error).__name__}: {one_line(error)}")
        raise
