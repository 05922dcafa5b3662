"""Virtual speed-ups: a stage seems faster because everything else pauses for a share of its time.

The idea is that of Coz (Curtsinger and Berger, SOSP 2015). Where a stage has run for t seconds and is to seem a
fraction f faster, each other process pauses for f * t. Time without these pauses then passes as if the stage itself had
taken (1 - f) * t, and a loop that does not wait for the stage gains nothing, as it would with a stage that is faster.

The pauses that are owed are counted in words that all processes share, and each process keeps what it has settled of
them. Its effective time is the clock's without what it has settled. Two rules make these times fit together:

- Before a process passes anything on (a batch, the indices of one, a request), it pauses for all that it still owes.
- Time in which a process waited counts as a pause, up to what was owed when what it waited for was passed on. It would
  have been later by that otherwise: the one it waited for has paused already, and nobody pauses twice.

Runs in workers, too: the standard library alone.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable, MutableSequence
from time import perf_counter

CAUSAL = "VITPROF_WATCH_CAUSAL"
"""Environment variable: the file with the shared words, where a causal profile is measured."""
STAGES = ("sampler", "read", "transform", "collate", "hand-over", "compute")
"""The stages that can seem faster, by number from 1 on."""
MOST_WORKERS = 128
WORD_BYTES = 8
N_BYTES = WORD_BYTES * (2 + MOST_WORKERS)
OFF = -1.0
"""In the first word: no block of steps is measured, and what is owed is forgiven."""
LONGEST_SLEEP_S = 0.25
"""A longer pause is made of several: once it is forgiven, a worker that is to end does."""
LEAST_PAUSE_S = 2e-4
"""A shorter pause is put off: a sleep takes 60 us longer than it was asked for."""


class SharedWords:
    """What the processes of a training share: floats that one process each writes.

    The first has the number of the stage that seems faster, plus the fraction by which; 0 where none does, or `OFF`.
    The thread that trains writes it. Each other word has the seconds that a process has asked all others to pause for,
    so far: the second one that of the training process, the rest those of the workers. Reading or writing a word of 8
    bytes is one operation.
    """

    def __init__(self, words: MutableSequence[float] | memoryview[float]) -> None:
        self._words = words

    @classmethod
    def in_file(cls, path: str) -> SharedWords:
        """Returns those in a file, which is made if it is not there. Raises `OSError`."""
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, N_BYTES)
            return cls(memoryview(mmap.mmap(file, N_BYTES)).cast("d"))
        finally:
            os.close(file)

    def speed_up(self, stage: int, fraction: float) -> None:
        """Makes a stage seem a fraction of its time faster from here on; 0: none of them."""
        self._words[0] = stage + fraction if fraction else 0.0

    def end(self) -> None:
        """Ends a block: no stage seems faster, and nobody has to pause."""
        self._words[0] = OFF

    @property
    def are_off(self) -> bool:
        """Returns whether no block is measured."""
        return self._words[0] == OFF

    def fraction_of(self, stage: int) -> float:
        """Returns by which fraction a stage seems faster."""
        fraction, number = math.modf(self._words[0])
        return fraction if number == stage else 0.0

    def owed_s(self) -> float:
        """Returns for how long a process that ran no such stage has to have paused, from the beginning on."""
        return sum(self._words[1:])

    def owe(self, slot: int, seconds: float) -> None:
        """Has all others pause. `slot`: that of the process which calls this, from 0 on."""
        self._words[slot + 1] += seconds


class Ledger:
    """What one process has settled of the pauses that are owed. One thread calls."""

    def __init__(self, words: SharedWords, slot: int) -> None:
        self._words = words
        self._slot = slot
        self.settled_s = words.owed_s()
        """It is a little more than what is owed where a sleep took longer than it should."""

    def ran(self, stage: int, seconds: float) -> None:
        """Notes that the process ran a stage for so long."""
        saved_s = self._words.fraction_of(stage) * seconds
        if saved_s > 0:
            self._words.owe(self._slot, saved_s)
            self.settled_s += saved_s

    def waited(self, seconds: float, most_s: float = math.inf) -> None:
        """Notes that the process has waited for so long; `most_s`: what the one that it waited for had
        settled by then."""
        most_s = min(self._words.owed_s(), most_s)
        self.settled_s = max(self.settled_s, min(self.settled_s + seconds, most_s))

    def due_s(self) -> float:
        """Returns for how long the process has to pause now; 0 where that is not worth a sleep."""
        owed_s = self._words.owed_s()
        if self._words.are_off:
            self.settled_s = max(self.settled_s, owed_s)
        seconds = owed_s - self.settled_s
        return seconds if seconds >= LEAST_PAUSE_S else 0.0

    def paused(self, seconds: float) -> None:
        """Notes a pause."""
        self.settled_s += seconds

    def pay(
        self,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Pauses for all that is due now."""
        left_s = self.due_s()
        while left_s > 0 and not self._words.are_off:
            since_s = clock()
            sleep(min(left_s, LONGEST_SLEEP_S))
            slept_s = clock() - since_s
            self.paused(slept_s)
            left_s -= slept_s


class Maker:
    """What makes batches: a worker, which waits for indices and passes batches on, or the loop itself."""

    def __init__(self, ledger: Ledger, *, is_worker: bool) -> None:
        self.ledger = ledger
        self.is_worker = is_worker
        self._sent_s = math.nan
        """When it passed on its last batch."""
        self._least_gap_s = math.inf
        """The shortest time from there to its next one: it did not wait, but sent and received."""

    def begin(self, now_s: float) -> None:
        """Notes that it begins a batch."""
        gap_s = now_s - self._sent_s
        if self.is_worker and gap_s >= 0:
            self._least_gap_s = min(self._least_gap_s, gap_s)
            self.ledger.waited(gap_s - self._least_gap_s)

    def made(self, read_s: float, transform_s: float, collate_s: float) -> None:
        """Notes what the stages of a batch have taken."""
        for stage, seconds in (
            ("read", read_s),
            ("transform", transform_s),
            ("collate", collate_s),
        ):
            self.ledger.ran(STAGES.index(stage) + 1, seconds)

    def sent(self, now_s: float) -> None:
        """Notes that the batch is passed on, after the pause that was due."""
        self._sent_s = now_s

    def pass_on(self) -> float:
        """Pauses for what is due, if it is a worker. Returns the time now (s)."""
        if self.is_worker:
            self.ledger.pay()
        now_s = perf_counter()
        self.sent(now_s)
        return now_s


class OfProcess:
    """What this process makes batches with."""

    def __init__(self) -> None:
        self.maker: Maker | None = None
        """None where no causal profile is measured."""


PROCESS = OfProcess()


def join_as_worker(number: int) -> None:
    """Has a worker take part, where a causal profile is measured. It owes nothing that was owed before. Raises
    `OSError`."""
    path = os.environ.get(CAUSAL)
    maker = PROCESS.maker
    has_joined = (
        maker is not None and maker.is_worker
    )  # a new epoch has a new fetcher in the same worker
    if path and number < MOST_WORKERS and not has_joined:
        PROCESS.maker = Maker(Ledger(SharedWords.in_file(path), number + 1), is_worker=True)
