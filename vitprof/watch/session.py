"""What is known of a watched training, on its way to the program that started the command."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
from typing import IO, Any

import vitprof
from vitprof.engine.protocol import SEND_EVERY_S, EventBuffer, write_message
from vitprof.watch.guard import Guard
from vitprof.watch.on_import import SOCKET
from vitprof.watch.overrides import made_of

SEND_LIMIT_S = 5.0
"""How long sending may stand still before the listener counts as gone: what waits to be sent is bounded by it."""


class Session:
    """A connection, and the thread that sends. Nothing of it is ever waited for in a step."""

    def __init__(self, guard: Guard, forking: threading.RLock) -> None:
        self._guard, self._forking = guard, forking
        self._buffer = EventBuffer()
        self.step = self._buffer.step
        self.phase = self._buffer.phase
        self.facts = self._buffer.facts
        self._closing = threading.Event()
        self._stream: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="vitprof-sender", daemon=True)

    def begin(self, device: Any, loader: dict[str, Any]) -> None:
        """The train loader is known (`loader_facts`): connects, and sends from here on. Raises `OSError`.

        Not sooner: who listens takes the first that connects for the one that trains.
        """
        with socket.socket(socket.AF_UNIX) as connection:  # the stream keeps it open
            connection.settimeout(SEND_LIMIT_S)
            connection.connect(os.environ[SOCKET])
            self._stream = connection.makefile("wb")
        self._buffer.environment({**device.environment(), **_process_facts(device), "watched": loader})
        self._buffer.stage("training", 0.0)
        self._thread.start()

    def close(self) -> None:
        """Sends what is left, and ends. May be called from any thread, and again."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(SEND_LIMIT_S)
        if self._stream is not None:
            self._send(self._stream)
            stream, self._stream = self._stream, None
            with contextlib.suppress(OSError):  # what could not be sent is lost
                stream.close()

    def _run(self) -> None:
        while (stream := self._stream) is not None and not self._closing.wait(SEND_EVERY_S):
            with self._forking:
                self._send(stream)

    def _send(self, stream: IO[bytes]) -> None:
        try:
            for message in self._buffer.drain():
                write_message(stream, message)
            stream.flush()
        except (OSError, ValueError) as error:
            self._stream = None
            self._guard.give_up(f"nobody takes the figures any more: {error}")


class Unheard:
    """In place of a session where steps are only counted."""

    def begin(self, device: Any, loader: dict[str, Any]) -> None: ...

    def step(self, row: tuple[float, ...]) -> None: ...

    def phase(self, name: str, since_s: float, until_s: float) -> None: ...

    def facts(self, facts: dict[str, Any]) -> None: ...

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
    """Returns the arguments of the train DataLoader as they are, and the names of what it is made of."""

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


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
