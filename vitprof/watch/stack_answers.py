"""Says where this process is in its Python code, when the program that records the run asks for it.

A thread waits for a connection, and costs nothing meanwhile. It answers as soon as it gets Python's
lock: that it does not for a second is an answer, too. No signal is sent, and the thread whose stack
is told does not notice.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from vitprof.watch.connection import NO_SIGNAL
from vitprof.watch.events import stack_address
from vitprof.watch.fetch_times import MAKING, MakingTimes
from vitprof.watch.own_thread import OwnThread

FETCH = "torch.utils.data._utils.fetch"
"""The module in which a batch is made: what is called from there is the data set, or its collate
function."""
OURS = "vitprof."
MOST_FRAMES = 8
MOST_DEEP = 500
"""Frames that are walked through: a recursion of the script may be deeper."""
INSTALLED = ("site-packages", "dist-packages")
LIBRARY = os.path.dirname(os.__file__)
"""Where Python's own modules are."""
ANSWER_LIMIT_S = 1.0
"""How long (s) sending an answer may take."""


@dataclass(slots=True)
class Maker:
    """The thread of this process that makes batches."""

    thread: int | None = None
    """None: it is the main one, as far as that is known."""
    making: MakingTimes | None = None


MAKER = Maker()


class StackAnswers:
    """The thread that answers."""

    def __init__(self) -> None:
        """Begins to answer. Raises `OSError` or `AttributeError` where the system has no such sockets."""
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._listening.bind(stack_address(os.getpid()))
            self._listening.listen(2)
        except OSError:
            self._listening.close()
            raise
        self._answering = OwnThread(self._answer, "vitprof-stacks")
        self._answering.start()

    def close(self) -> None:
        """Ends the thread."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                if _is_of_this_user(connection):
                    connection.settimeout(ANSWER_LIMIT_S)
                    connection.sendall(json.dumps(self._stack()).encode(), NO_SIGNAL)

    def _stack(self) -> dict[str, Any]:
        thread = MAKER.thread or threading.main_thread().ident or 0
        frame = sys._current_frames().get(thread)
        # only a name, as the file may be of a dataset's own type
        opened = MAKER.making.file if MAKER.making is not None else None
        path = os.path.abspath(opened) if isinstance(opened, str) else ""
        return {**stack_of(frame), "opened": path}


@functools.cache
def answers_of(pid: int) -> StackAnswers | None:
    """Returns what answers in the process `pid`, this one; None where nothing can."""
    try:
        return StackAnswers()
    except Exception:  # also of an audit hook of the script's
        return None


def note_maker(*, is_worker: bool) -> None:
    """Notes that this thread makes batches from here on. A worker answers from here on, too."""
    MAKER.thread = threading.get_ident()
    MAKER.making = MAKING.now
    if is_worker:
        answers_of(os.getpid())


def _is_of_this_user(connection: socket.socket) -> bool:
    """Returns whether another program of this user asks, or root: sockets without a file have no other
    rights."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", peer)
    return user in (0, os.getuid())


def stack_of(frame: FrameType | None) -> dict[str, Any]:
    """Returns a thread's stack from its innermost frame on: see `telemetry.looks.Stack`."""
    frames: list[FrameType] = []
    making: list[FrameType] = []
    is_making = False
    for _ in range(MOST_DEEP):
        if frame is None:
            break
        name = _module(frame)
        if name == FETCH:
            # the outermost such frame: a data set may read a loader of its own
            making = frames[:] or [frame]
            is_making = True
        if not name.startswith(OURS):
            frames.append(frame)
        frame = frame.f_back
    own, calls = _place(making) if is_making else ("", "")
    told = [f"{_name(each)} {each.f_lineno}" for each in frames[:MOST_FRAMES]]
    return {"own": own, "calls": calls, "frames": told}


def _place(frames: list[FrameType]) -> tuple[str, str]:
    """Returns the innermost place in the script's own code, and what that calls; else that of the data
    set."""
    at = next((n for n, each in enumerate(frames) if _is_own(each.f_code)), len(frames) - 1)
    place = frames[at]
    file = os.path.basename(place.f_code.co_filename)
    return f"{file}:{place.f_lineno}", _name(frames[at - 1]) if at else ""


def _is_own(code: CodeType) -> bool:
    """Returns whether code is the script's, and not of a package that is installed."""
    file = code.co_filename
    is_installed = any(part in file for part in INSTALLED)
    return not (file.startswith(("<frozen", LIBRARY)) or is_installed)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_name}"
