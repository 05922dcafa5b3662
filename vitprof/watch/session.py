"""Sends what is known about a watched training to the program that records it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vitprof
from vitprof.errors import one_line
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import EventBuffer, write_message
from vitprof.program import program
from vitprof.watch.connection import Connection, connect
from vitprof.watch.guard import Guard
from vitprof.watch.overrides import made_of

SEND_EVERY_S = 0.5
"""How often (s) to send. Each time takes 0.6 ms of CPU here and 0.4 ms in the receiver, however few steps there are,
when a training has filled the caches."""
END_LIMIT_S = 2.0
"""How long (s) a script may have to wait at its end, or at the end of a run, for the rest to be sent, and again for the
number of a run that has only just begun."""


@dataclass(frozen=True)
class Wanted:
    """The wishes of a script that watches itself."""

    name: str
    """The run's name."""
    quiet: bool
    """Whether to print no line at the end of the run that says where to find it."""


class Session:
    """A connection, and the thread that sends. No step ever waits for it."""

    def __init__(
        self, guard: Guard, forking: threading.RLock, wanted: Wanted | None, send_steps: Callable[[], None]
    ) -> None:
        """`send_steps` is called in the thread each time before it sends."""
        self._guard, self._forking, self._wanted, self._send_steps = guard, forking, wanted, send_steps
        self._buffer = EventBuffer()
        self.steps = self._buffer.steps
        self.phase = self._buffer.phase
        self.facts = self._buffer.facts
        self.notice = self._buffer.notice
        self._environment: dict[str, Any] = {}
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="vitprof-sender", daemon=True)
        self._known = threading.Event()
        """Set when the run's number is known, or that there is none."""
        self._ended = False
        """Whether an "end" was sent, and no new beginning since."""

    def begin(self, device: Any, loader: dict[str, Any]) -> None:
        """Connects, now that the train loader is known (`loader_facts`), and sends from here on. Raises `OSError`.

        Not sooner: the receiver takes the first process that connects for the one that trains.
        """
        if self._wanted is not None:
            loader = {**loader, "name": self._wanted.name}
        self._connection = connect()
        self._environment = {**device.environment(), **_process_facts(device), "watched": loader}
        self._buffer.environment(self._environment)
        self._buffer.stage("training", 0.0)
        self._thread.start()

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now, with this status and error; `begin_again` continues it."""
        if self._connection is None or not self._connection.collector or self._ended:
            return
        self._ended = True
        self._buffer.end(status, error)
        self._say_where()

    def begin_again(self) -> None:
        """Continues the run after `pause`."""
        if self._ended:
            self._ended = False
            self._buffer.environment(self._environment)
            self._buffer.stage("training", math.nan)

    def close(self) -> None:
        """Sends what is left, and closes the connection. May be called from any thread, and again."""
        connection = self._connection
        if connection is not None and connection.collector and not self._ended:
            self.pause(*self._how_it_ended())
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(END_LIMIT_S)
            if self._thread.is_alive():  # it is stuck sending
                return
        if (connection := self._connection) is not None:
            connection.limit(END_LIMIT_S)
            self._send(connection)
            self._connection = None
            connection.close()

    def forget(self) -> None:
        """Drops the connection in a forked process."""
        if self._connection is not None:
            self._connection.forget()
            self._connection = None

    def _how_it_ended(self) -> tuple[str, str]:
        """Returns status and error of the run, from the exception that ends the program, which Python keeps."""
        if self._guard.why:
            return "failed", f"watching was given up ({self._guard.why})"
        interactive = hasattr(sys, "ps1")  # there the exception may be an old one
        return how_it_ended(None if interactive else getattr(sys, "last_value", None))

    def _say_where(self) -> None:
        """Says at the end of a run that a collector records where to find it."""
        if self._wanted is None or self._wanted.quiet or self._thread is threading.current_thread():
            return
        self._known.wait(END_LIMIT_S)
        if (connection := self._connection) is None or self._guard.why:
            return
        if (run := connection.run) is not None:
            sys.stderr.write(f"vitprof: recorded as run {run}: see {program()} runs {run}, or the dashboard\n")
        else:
            sys.stderr.write(f"vitprof: the run is being recorded: see {program()} runs, or the dashboard\n")

    def _run(self) -> None:
        while (connection := self._connection) is not None and not self._closing.wait(SEND_EVERY_S):
            with self._forking:
                self._guard(self._send_steps)
                self._send(connection)

    def _send(self, connection: Connection) -> None:
        try:
            stream = io.BytesIO()  # the buffer of a socket's file would be flushed again in every forked process
            for message in self._buffer.drain():
                write_message(stream, message)
            connection.send(stream.getvalue())
            connection.listen()
            why = connection.refusal
            if connection.run is not None:
                self._known.set()
        except (OSError, ValueError) as error:
            why = _refusal(connection) or f"sending data failed: {error}"
        if why:
            self._connection = None
            self._known.set()
            connection.close()
            self._guard.give_up(why)


def _refusal(connection: Connection) -> str:
    """Returns why the receiver takes no more data, if it has said so; else ""."""
    with contextlib.suppress(OSError, ValueError):
        connection.listen()
    return connection.refusal


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns status and error of a run whose loop ended with this exception; None: without one."""
    if error is None:
        return "done", ""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", ""
    return "failed", f"the script ended with {one_line(error)}"


class Unheard:
    """A session that sends nothing, for a process whose steps are only counted."""

    def begin(self, device: Any, loader: dict[str, Any]) -> None: ...

    def steps(self, columns: Columns) -> None: ...

    def phase(self, name: str, since_s: float, until_s: float) -> None: ...

    def facts(self, facts: dict[str, Any]) -> None: ...

    def notice(self, line: str) -> None: ...

    def pause(self, status: str, error: str) -> None: ...

    def begin_again(self) -> None: ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


def _process_facts(device: Any) -> dict[str, Any]:
    import torch

    world = os.environ.get("WORLD_SIZE", "")
    return {
        "pid": os.getpid(),
        "device": device.name,
        "vitprof": vitprof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "world_size": int(world) if world.isdecimal() else 1,
    }


def loader_facts(loader: Any) -> dict[str, Any]:
    """Returns the arguments of a DataLoader, and the names of its dataset, sampler and collate function."""

    def name(value: Any) -> str | None:
        return None if value is None else getattr(value, "__name__", value.__class__.__name__)

    context = getattr(loader, "multiprocessing_context", None)
    return {
        "dataset": name(loader.dataset),
        "n_samples": _length(loader.dataset),
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": context.get_start_method() if context is not None else None,
        "collate": name(loader.collate_fn),
        "sampler": name(loader.sampler),
        "drop_last": bool(loader.drop_last),
        **made_of(loader),
    }


def generic_facts(loader: Any) -> dict[str, Any]:
    """Returns some of the facts of `loader_facts` for a loader of any kind: its attributes with PyTorch's names."""

    def known(name: str, kind: type) -> Any:
        value = getattr(loader, name, None)
        return value if isinstance(value, kind) else None

    dataset = getattr(loader, "dataset", None)
    return {
        "dataset": type(loader if dataset is None else dataset).__name__,
        "batch_size": known("batch_size", int),
        "num_workers": known("num_workers", int) or 0,
        "pin_memory": bool(known("pin_memory", bool)),
    }


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
