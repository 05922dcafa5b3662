"""Sends the events of a watched process to the program that started it.

A thread sends twice a second. No hook and no step ever waits for it: what it locks is its own. It is
no thread of `threading`: a script that joins all threads, or counts them, does not meet it.
"""

from __future__ import annotations

import _thread
import contextlib
import io
import itertools
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note, write_message
from vitprof.watch.connection import SEND_LIMIT_S, Connection
from vitprof.watch.events import COLUMNS, WIDTH, Buffer, Description, Row
from vitprof.watch.own_thread import OwnThread
from vitprof.watch.patches.stages import StageSums
from vitprof.watch.patching import SOCKET
from vitprof.watch.rank_identity import (
    ALL_RANKS,
    is_recorded,
    job_key,
    launcher,
    local_rank,
    n_ranks,
    rank,
    restarts,
)

T = TypeVar("T")
SEND_FIRST_S = 0.02
"""How soon (s) to send first, for a script that is killed; each time then waits longer than the one
before, up to `SEND_EVERY_S`."""
SEND_EVERY_S = 0.5
FOLLOWING_S = 2.0
"""How long (s) after the last events their reader is told the time: a step may be certain by then."""
ANSWER_LIMIT_S = 5.0
"""How long (s) an answer may take."""
FEW_EVENTS = 8
"""So many events take time."""
OUT_OF_ORDER_S = 1.0
"""Events of several threads may be recorded out of their order by less than this (s)."""
CLOCK_REPLACED = "the script has replaced the clock, time.perf_counter"
END_LIMIT_S = 2.0
"""How long (s) a script may have to wait at its end for the number of its run."""


class Transport:
    """A connection to the program that records the script, and the thread that sends."""

    def __init__(
        self,
        buffer: Buffer,
        connect: Callable[[], Connection],
        stages: StageSums | None = None,
        lost: Callable[[str], None] = lambda why: None,
        header: Callable[[], dict[str, Any]] = dict,
        received: Callable[[dict[str, Any]], bool] = lambda answer: False,
        before_sending: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` may raise anything. `stages`: is described now and then. `lost` is called with the
        reason where a training's events cannot be sent, or no more of them. `header` returns more facts
        about the process. `received` takes what the program says, and returns whether that was for it.
        `before_sending` is called each time before what was recorded is taken, and may describe more."""
        self._buffer = buffer
        self._stages = stages
        self._lost = lost
        self._connect_to = connect
        self._header = header
        self._received = received
        self._before_sending = before_sending
        self._connection: Connection | None = None
        self._process: dict[str, Any] | None = None
        """What is known of this process since its first work: by its end a rank may have left its group."""
        self._answers: list[dict[str, Any]] = []
        """What the program has sent, and nobody has read."""
        self._run_number: int | None = None
        """That of the run that was begun for the events, once the program has said it."""
        self._last_event_s = -math.inf
        self._sent_s = -math.inf
        """When events were sent last."""
        self._trains = False
        """Whether anything was trained."""
        self.connected = False
        """Whether it ever connected: this process, or the one that it was forked from, trains."""
        self._refused = False
        """Whether the program is gone, or does not want the events."""
        self._sending = _thread.allocate_lock()
        self._ending = _thread.allocate_lock()
        """Held until the process ends: who waits for it with a limit wakes up at the end."""
        self._thread = OwnThread(self._run, "vitprof-events")

    def begin(self) -> None:
        """Sends from here on. It connects once something was trained: a worker never does."""
        self._ending.acquire()
        self._thread.start()

    def note_process(self) -> None:
        """Notes which rank of a job this process is, as it first works."""
        self._process = process_header()

    def finish(self) -> None:
        """Sends what is left, and closes the connection. May be called in any thread, and again."""
        if self._ending.locked():
            self._ending.release()
            if not self._thread.join(SEND_LIMIT_S):  # it is stuck sending
                return
        with self._sending:
            self._flush(at_end=True)
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def has_trained(self) -> bool:
        """Returns whether anything was trained, sent or not: by this process, or by the one that it was
        forked from."""
        return self.connected or self._trains or self._buffer.has_training()

    def forget(self) -> None:
        """Drops everything in a forked process, where no thread sends."""
        self._buffer.forget()
        if self._connection is not None:
            self._connection.forget()
            self._connection = None
        self._answers.clear()
        self._run_number = None
        self._process = None
        self._trains = False
        self._sending = _thread.allocate_lock()
        self._ending = _thread.allocate_lock()

    def ask(self, question: str, values: dict[str, Any]) -> dict[str, Any] | None:
        """Sends all events so far and a question; returns the answer. None: there is none within
        `ANSWER_LIMIT_S`."""
        with self._sending:
            self._flush(Note(question, values))
            return self._awaited(lambda: self._answer_to(question), ANSWER_LIMIT_S)

    def run_number(self) -> int | None:
        """Sends all events so far; returns the number of the run that was begun for them. 0: it has none
        yet. None: it is not known within `END_LIMIT_S`."""
        with self._sending:
            self._flush()
            return self._awaited(lambda: self._run_number, END_LIMIT_S)

    def _run(self) -> None:
        wait_s = SEND_FIRST_S
        while not self._ending.acquire(timeout=wait_s):
            wait_s = min(1.25 * wait_s, SEND_EVERY_S)
            with self._sending:
                self._flush()
                self._read_answers(0.0)

    def _flush(self, question: Note | None = None, *, at_end: bool = False) -> None:
        self._trains = self._trains or self._buffer.has_training()
        wanted = question is not None or self._trains or (at_end and self._buffer.has_work())
        if self._connection is None and not (wanted and self._connect()):
            self._buffer.bound(perf_counter())
            return
        self._before_sending()
        descriptions, rows = self._buffer.take()
        if self._stages is not None:
            descriptions += self._stages.described(at_end=at_end)
        if not self._are_timed(rows):
            failed = Description(0, "failure", {"why": CLOCK_REPLACED})
            self._send([_described(failed)])
            self._lost(CLOCK_REPLACED)
            return
        messages: list[Message] = [_described(description) for description in descriptions]
        now_s = perf_counter()
        if rows:
            messages.append(_columns(rows))
            self._sent_s = now_s
        elif now_s < self._sent_s + FOLLOWING_S:
            messages.append(Note("clock", {"now_s": now_s}))
        if question is not None:
            messages.append(question)
        self._send(messages)

    def _are_timed(self, rows: Sequence[Row]) -> bool:
        """Returns whether the clock told time during these events and all before: it neither stood still
        nor ran backwards.

        A script that was started without the command may have replaced that of our modules, too.
        """
        if not rows:
            return True
        times_s = [row[1] for row in rows]
        stands_still = len(rows) >= FEW_EVENTS and times_s[0] == times_s[-1]
        # All of a short script may be sent at once: the clock may have been replaced among these.
        latest_s = max(times_s)
        self._last_event_s = max(self._last_event_s, latest_s)
        runs_backwards = times_s[-1] < self._last_event_s - OUT_OF_ORDER_S
        return not (stands_still or runs_backwards)

    def _connect(self) -> bool:
        """Connects; returns whether the program takes events."""
        if self._refused:
            return False
        header = self._process
        if header is None or header["world_size"] == 1:  # it may have joined a group since
            header = process_header()
        if not (header["recorded"] or os.environ.get(SOCKET)):
            # A collector of its own would have nothing to record.
            self._refused = True
            return False
        try:
            self._connection = self._connect_to()
        except Exception as error:  # also of an audit hook of the script's
            self._refuse(f"{type(error).__name__}: {error}")
            return False
        self.connected = True
        self._send([Note("process", header | self._header())])
        return self._connection is not None

    def _send(self, messages: Sequence[Message]) -> None:
        """Sends messages; without a receiver they are lost, and no more are sent."""
        if self._connection is None or not messages:
            return
        frames = io.BytesIO()
        for message in messages:
            write_message(frames, message)
        try:
            self._connection.send(frames.getvalue())
        except ConnectionError as error:
            self._refuse(str(error))
        except OSError as error:
            self._refuse(f"sending data failed: {error}")

    def _refuse(self, why: str) -> None:
        """Notes that nothing receives the events, unless the program has said why."""
        if self._connection is not None:
            with contextlib.suppress(OSError, ValueError):
                self._answers += self._connection.answers(0.0)
            self._connection.close()
            self._connection = None
        self._refused = True
        reasons = [str(answer["error"]) for answer in self._answers if "error" in answer]
        if self._trains:
            self._lost(next(iter(reasons), why))

    def _read_answers(self, limit_s: float) -> None:
        """Reads what the program has sent; waits for it for at most `limit_s`."""
        if self._connection is None:
            return
        try:
            answers = self._connection.answers(limit_s)
        except (OSError, ValueError) as error:
            self._refuse(str(error))
            return
        for answer in answers:
            if "run" in answer:
                self._run_number = int(answer["run"])
            elif not self._received(answer):
                self._answers.append(answer)
        if any("error" in answer for answer in self._answers):
            self._refuse("")

    def _answer_to(self, question: str) -> dict[str, Any] | None:
        """Takes the answer to a question from what was read; None where it has not come."""
        for answer in self._answers:
            if answer.get("answer") == question:
                self._answers.remove(answer)
                return answer
        return None

    def _awaited(self, come: Callable[[], T | None], limit_s: float) -> T | None:
        """Reads what the program sends until `come` returns something, which is returned; None where that
        is not there within so long."""
        until_s = perf_counter() + limit_s
        while True:
            result = come()
            if result is not None:
                return result
            left_s = until_s - perf_counter()
            if self._connection is None or left_s <= 0:
                return None
            self._read_answers(left_s)


def _described(description: Description) -> Note:
    facts = {"number": description.number, "kind": description.kind, "facts": description.facts}
    return Note("described", facts)


def _columns(rows: Sequence[Row]) -> Columns:
    figures = np.fromiter(itertools.chain.from_iterable(rows), np.float64, len(rows) * WIDTH)
    return dict(zip(COLUMNS, figures.reshape(-1, WIDTH).T, strict=True))


def process_header() -> dict[str, Any]:
    """Returns what a reader of the events must know of this process."""
    facts = {"pid": os.getpid(), "python": platform.python_version()}
    facts |= {"world_size": n_ranks() or 1, "rank": rank(), "recorded": is_recorded()}
    facts |= {"launcher": launcher(), "restarts": restarts()}
    if facts["world_size"] == 1:
        return facts
    key = job_key() if os.environ.get(ALL_RANKS) else ""
    return {**facts, "local_rank": local_rank(), "job": key, "began_unix_s": time.time()}
