"""Looks at a watched script while it waits for a batch that is late, and keeps what was seen.

Whether a batch is late is decided while it is waited for, which step waited and who made the batch
with hindsight, by the events. Both meet by the moment at which the batch was requested.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.late_batches import batch_seen
from vitprof.errors import one_line
from vitprof.jobs.stack_requests import StackRequests
from vitprof.measure.wire import Note
from vitprof.recording.late_batches import LateBatch
from vitprof.telemetry.looks import GONE, Look, Looker
from vitprof.watch.core.late_batches import LATE_S
from vitprof.watch.events import PENDING_MARK
from vitprof.watch.time_sketch import bucket_of, quantile_s

LONGEST_SLEEP_S = 0.1
"""How long (s) the thread that looks sleeps at most: until then a wait that has not begun yet is not late. To wake it
takes about 50 us of CPU."""
SHORTEST_SLEEP_S = 0.005
FIRST_LOOKS_S = 0.5
"""CPU time (s) for the looks of a run, however short it is: some 50 to 100 late batches."""
LOOKS_FRAC = 0.0005
"""Share of a core for looks after that, so that all of it stays below 0.2%: the checks take 0.07%, answers
a third of the looks. A script that waits for one late batch after the other would take 0.8% with 2
workers, and more with more of them, to be told the same again and again."""
USUAL_SHARE = 0.9
TIMES_USUAL = 3.0
"""A batch is late from so many times the wait that `USUAL_SHARE` of the batches stay below. A higher
quantile, such as 99.5%, would be that of the late batches themselves, where there is one in a
hundred: only ever longer ones would be late."""
FEWEST_TIMES = 20
"""Times by which it is known what is usual."""
FIRST_GAP_S = 0.1
GAP_GROWS = 1.4
MOST_LOOKS = 20
"""The looks at one batch: the first ones `FIRST_GAP_S` apart, each gap longer than the one before, so
that the last is after 3.5 minutes."""
MOST_PROCESSES = 32
"""Workers that are looked at: those that were started last."""
MOST_PENDING = 32
"""Late batches of which the events have not come yet. They come within seconds."""
MOST_LISTED = 200
NONE = np.empty(0)
JOIN_S = 5.0
"""How long (s) to wait for the end of a look: /proc answers at once."""
NOT_SEEN = "the script's process could not be looked at from outside: {}"


class UsualTime:
    """How long something usually takes: the time that `USUAL_SHARE` of all stay below."""

    def __init__(self) -> None:
        self._buckets = Counter[int]()
        self._n = 0
        self.seconds: float | None = None
        """None while that is not known."""

    def add(self, times_s: Iterable[float]) -> None:
        """Adds times; NaN is none."""
        known = [time_s for time_s in times_s if not math.isnan(time_s)]
        self._buckets.update(bucket_of(time_s) for time_s in known)
        self._n += len(known)
        if known and self._n >= FEWEST_TIMES:
            self.seconds = quantile_s(self._buckets, USUAL_SHARE)


class UsualWaits(UsualTime):
    """How long the script usually waits for a batch."""

    @property
    def late_s(self) -> float:
        """Returns from which wait (s) on a batch is late; infinite while that is not known."""
        if self.seconds is None:
            return math.inf
        return max(LATE_S, TIMES_USUAL * self.seconds)


@dataclass(slots=True, eq=False)
class LateWait:
    """A wait for a batch that is late, and the looks at it."""

    requested_s: float
    looks: list[Look] = field(default_factory=list)
    next_s: float = 0.0
    """When the next look is due."""
    gap_s: float = FIRST_GAP_S
    is_looked_at: bool = True
    """Whether there was CPU time left for looks at it."""


class LookTaker:
    """Decides when to look, and keeps the looks until somebody takes them."""

    def __init__(
        self,
        take: Callable[[bool], Look],
        usual: UsualWaits,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`take` takes a look, and is told whether it is the first one at a wait. `cpu_clock` returns the CPU
        time of the thread that looks."""
        self._take = take
        self._usual = usual
        self._cpu_clock = cpu_clock
        self._spent_s = 0.0
        """CPU time of all looks."""
        self._since_s: float | None = None
        """When the first wait was late."""
        self._current: LateWait | None = None
        self._kept: deque[LateWait] = deque(maxlen=MOST_PENDING)

    def check(self, requested_s: float, now_s: float) -> float:
        """Takes a look if one is due. `requested_s`: since when the script waits for a batch; 0 where it
        does not.

        Returns after how long (s) the next look may be due; infinite if the script does not wait.
        """
        wait = self._current
        if wait is not None and wait.requested_s != requested_s:
            wait = self._current = None
        if not requested_s:
            return math.inf
        late_at_s = requested_s + self._usual.late_s
        if now_s < late_at_s:
            return late_at_s - now_s
        if wait is None:
            wait = LateWait(requested_s, is_looked_at=self._may_look(now_s))
            self._current = wait
            self._kept.append(wait)
        if not wait.is_looked_at or len(wait.looks) == MOST_LOOKS:
            return math.inf
        if now_s < wait.next_s:
            return wait.next_s - now_s
        began_s = self._cpu_clock()
        wait.looks.append(self._take(not wait.looks))
        self._spent_s += self._cpu_clock() - began_s
        wait.next_s = now_s + wait.gap_s
        wait.gap_s *= GAP_GROWS
        return wait.next_s - now_s

    def _may_look(self, now_s: float) -> bool:
        """Returns whether a wait that is late now may be looked at: all of it, or none, as a cause needs
        several looks."""
        if self._since_s is None:
            self._since_s = now_s
        return self._spent_s <= FIRST_LOOKS_S + LOOKS_FRAC * (now_s - self._since_s)

    def taken(self, requested_s: Iterable[float]) -> LateWait | None:
        """Removes and returns a wait that began at one of these moments; None where none of them was
        late."""
        moments = set(requested_s)
        # a copy, as the thread that looks may append meanwhile
        for wait in self._kept.copy():
            if wait.requested_s in moments:
                with contextlib.suppress(ValueError):
                    self._kept.remove(wait)
                return wait
        return None


class LateBatchRecorder:
    """The late batches of one run."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._usual = UsualWaits()
        self._usual_making = UsualTime()
        self._workers: list[int] = []
        self._watch: ScriptWatch | None = None
        self._listed: deque[LateBatch] = deque(maxlen=MOST_LISTED)
        self._late = 0
        self._waited_s = 0.0
        self._not_seen = ""
        self._is_new = False
        """Whether there is something to tell that was not told."""

    def receive(self, note: Note) -> None:
        """Takes what the events say: see `watch.core.messages`."""
        values = note.values
        match note.kind:
            case "looked_at":
                self.follow(values["pid"], values["descriptor"])
            case "workers_begun":
                self.add_workers(values["pids"])
            case "late":
                self.add_late(values["batches"])

    def follow(self, pid: int, descriptor: int) -> None:
        """Looks at the script's process from here on, which says by this descriptor that it waits."""
        self.stop()
        try:
            self._watch = ScriptWatch(pid, descriptor, self._usual, self._clock)
        except (OSError, ValueError, struct.error) as error:
            self._not_seen = NOT_SEEN.format(one_line(error))
            self._is_new = True
            return
        self._watch.add_workers(self._workers)
        self._watch.start()

    def add_workers(self, pids: Iterable[int]) -> None:
        """Adds processes that make batches for the script."""
        self._workers = [*self._workers, *pids][-MOST_PROCESSES:]
        if self._watch is not None:
            self._watch.add_workers(self._workers)

    def add_steps(self, steps: Series) -> None:
        """Adds some steps: how long each waited, and how long its batch took to make."""
        self._usual.add(steps.get("data_wait_s", NONE).tolist())
        making_s = steps.get("made_end_s", NONE) - steps.get("made_start_s", NONE)
        self._usual_making.add(making_s.tolist())

    def add_late(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Adds what the events say of batches that came late: see `watch.core.late_batches`."""
        watch = self._watch
        if watch is None:
            return
        for late in batches:
            wait = watch.taker.taken(late["requested_s"])
            if wait is None:
                continue
            if wait.looks:
                # a copy, as the thread that looks may append meanwhile
                seen = batch_seen(late, [*wait.looks], watch.pid, self._usual_making.seconds)
                self._listed.append(seen)
            self._late += 1
            self._waited_s += late["waited_s"]
            self._is_new = True

    def facts(self) -> dict[str, Any]:
        """Returns the fact "late_batches" where it has changed since the last call; else nothing."""
        if not self._is_new:
            return {}
        self._is_new = False
        fact: dict[str, Any] = {"late": self._late, "waited_s": self._waited_s}
        fact["listed"] = list(self._listed)
        if self._not_seen:
            fact["not_seen"] = self._not_seen
        return {"late_batches": fact}

    def stop(self) -> None:
        """Looks no more."""
        if self._watch is None:
            return
        self._watch.stop()
        if self._watch.error is not None:
            self._not_seen = NOT_SEEN.format(one_line(self._watch.error))
            self._is_new = True


class ScriptWatch:
    """A thread that looks at a script's process while it waits."""

    def __init__(
        self, pid: int, descriptor: int, usual: UsualWaits, clock: Callable[[], float]
    ) -> None:
        """Raises `OSError` or `ValueError` where the process does not show since when it waits."""
        self.pid = pid
        self._clock = clock
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as shared:
            self._words = mmap.mmap(shared.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_READ)
        _, mark = self._read()
        if mark != PENDING_MARK:
            raise ValueError("its descriptor is of something else")
        self._looker = Looker(clock=clock)
        self._stacks = StackRequests(clock)
        self._workers: tuple[int, ...] = ()
        self.taker = LookTaker(self._look, usual)
        self.error: Exception | None = None
        """What ended the looks early, if anything did."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"vitprof-late-{pid}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for it. May be called again."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._stacks.drop()

    def add_workers(self, pids: Iterable[int]) -> None:
        self._workers = tuple(pids)

    def _run(self) -> None:
        try:
            sleep_s = LONGEST_SLEEP_S
            while not self._stop.is_set():
                # Waiting for the event with a limit would take twice the CPU time.
                time.sleep(sleep_s)
                requested_s, _ = self._read()
                due_s = self.taker.check(requested_s, self._clock())
                sleep_s = min(max(due_s, SHORTEST_SLEEP_S), LONGEST_SLEEP_S)
        except Exception as error:
            self.error = error  # there is nobody to raise it to

    def _read(self) -> tuple[float, float]:
        requested_s, mark = struct.unpack_from("=2d", self._words)
        return requested_s, mark

    def _look(self, is_first: bool) -> Look:
        at_s = self._clock()
        if is_first:  # what was asked at an earlier wait is of that
            self._stacks.drop()
        answers = self._stacks.answers()
        pids = (self.pid, *self._workers)
        seen = self._looker.processes(pids)
        look = Look(at_s, seen, self._looker.machine(self.pid), answers, self._stacks.unanswered)
        self._stacks.ask(each.pid for each in seen if each.state != GONE)
        return look
