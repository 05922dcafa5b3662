"""Looks at what each stage of a built-in job's batches uses of the cores, in the threads that make them.

The rule is that of a user's own script (`core_use`): in a few batches it is looked at for how long the thread was ready
to run and had no core, and the other threads of its process. Samples go through their stages one after the other, so
a look follows the thread from stage to stage: in some samples of a large batch, as each change takes a read or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

from vitprof.measure.core_use import (
    LEAST_BATCH_S,
    NOTHING,
    CoreTimes,
    OwnTimes,
    ThreadFiles,
    as_facts,
    divide,
    look_counts_for,
)
from vitprof.recording.columns import TIMED_STAGES

MOST_SAMPLES = 64
"""Samples of a batch in which the thread that makes them is followed: a read of 2 us for each change of its stage. All
threads are looked at in fewer of them (`ThreadFiles.calls`)."""
COLLATE = "collate"
REST = "rest"
"""The stage of what comes between those that have a clock."""


class LookedBatch(NamedTuple):
    """What the stages of one batch used of the cores. It comes from a worker with the batch."""

    counts_for: int
    """For how many batches that are looked at it stands."""
    stages: Sequence[tuple[str, CoreTimes]]
    """Names of stages, each with what it used. What remains for a stage without a clock may be below 0 in one batch:
    the others are known from some of its samples."""
    cost_s: float
    """What looking takes."""


class StageLook:
    """A look at a batch, or at a piece of one that several threads make. Made by the thread that it follows; to be
    closed.

    The thread is always in one stage, or in none (""). Plain numbers are summed here: a named tuple for each would take
    as long as Linux takes to say them.
    """

    def __init__(
        self, counts_for: int, samples: int, *, rest: str = "", is_alone: bool = False
    ) -> None:
        """Begins to look at so many samples. It stands for `counts_for` batches.

        `rest`: the stage of what comes between those that have a clock; "" if nothing does. `is_alone`: no
        other thread of the process helps with this batch, as those of OpenMP do. What others waited for a
        core then cost it no more than the time in which it slept: it may wait for Python's lock, which one
        of them has.

        Raises `OSError` or `ValueError` where the system does not say for how long a thread waits.
        """
        began_s = perf_counter()
        self.counts_for = counts_for
        self.rest = rest
        self.is_alone = is_alone
        self.of_samples = NOTHING
        """What all threads used until the batch was collated, looking aside."""
        self._files = ThreadFiles()
        self._is_open = True
        self._every_own = max(1, math.ceil(samples / MOST_SAMPLES))
        self._every_all = max(1, math.ceil(samples / self._files.calls))
        self._n_samples = samples
        self._samples = 0
        """Samples that have begun."""
        self._stage = ""
        self._follows_own = True
        self._follows_all = True
        self._own: dict[str, list[float]] = {}
        """In the samples in which the thread is followed: its wall time (s), CPU time and waits (ns) by stage."""
        self._all: dict[str, list[float]] = {}
        """In those in which all threads are: wall time, CPU time of the process (s), waits of the others (ns)."""
        self._at_s = self._process_s = 0.0
        self._used_ns = self._queued_ns = self._others_ns = 0
        """What had been used at this moment."""
        self._reads_s: dict[bool, list[float]] = {False: [], True: []}
        """How long each read took: of the own thread alone, and of all."""
        self._begin_s = self.spent_s = perf_counter() - began_s
        """What looking has taken so far."""
        self._follow()
        self._began = self._so_far()

    def enter(self, stage: str) -> str:
        """Goes into a stage, "" for none. Returns the one that the thread was in."""
        before = self._stage
        if self._follows_own:
            self._follow()
        self._stage = stage
        return before

    def begin_sample(self) -> None:
        """Leaves the stage in which the sample before ended, and decides whether to follow the next one."""
        if self._stage:
            self.enter("")
        number = self._samples
        self._samples += 1
        self._follows_all = not number % self._every_all
        self._follows_own = self._follows_all or not number % self._every_own

    def collate(self) -> None:
        """Goes on to collating a sample, or the batch once all samples have begun."""
        if self._samples < self._n_samples:
            self.enter(COLLATE)
            return
        self.enter("")
        self._follows_own = self._follows_all = True
        self._follow()
        self.of_samples = self._so_far().since(self._began)
        self._stage = COLLATE

    def close(self) -> None:
        """Leaves the last stage and closes what is open. May be called twice."""
        if self._is_open:
            self.enter("")
            self._is_open = False
            self._files.close()

    @property
    def cost_s(self) -> float:
        """Returns what looking takes: the usual time of a read as often as there were reads, for other programs
        interrupt some of them."""
        of_reads = [median(took_s) * len(took_s) for took_s in self._reads_s.values() if took_s]
        return self._begin_s + math.fsum(of_reads)

    def own_in(self, stage: str) -> OwnTimes:
        """Returns what the thread used in a stage, in the samples in which it was followed."""
        wall_s, used_ns, queued_ns = self._own.get(stage, (0.0, 0.0, 0.0))
        return OwnTimes(wall_s, used_ns / 1e9, queued_ns / 1e9)

    def all_in(self, stage: str) -> CoreTimes:
        """Returns what all threads used in it, in those in which all were; the own thread's waits aside."""
        wall_s, process_s, others_ns = self._all.get(stage, (0.0, 0.0, 0.0))
        return CoreTimes(wall_s, process_s, 0.0, others_ns / 1e9)

    def _follow(self) -> None:
        """Counts what was used since the last call for the stage that the thread is in. Looking takes as long as a
        short stage, and is no part of one."""
        now_s = perf_counter()
        stage = self._stage
        used_ns, queued_ns = self._files.own_ns()
        if stage:
            sums = self._own.setdefault(stage, [0.0, 0.0, 0.0])
            sums[0] += now_s - self._at_s
            sums[1] += used_ns - self._used_ns
            sums[2] += queued_ns - self._queued_ns
        self._used_ns = used_ns
        self._queued_ns = queued_ns
        if self._follows_all:
            process_s = process_time()
            others_ns = self._files.others_queued_ns()
            if stage:
                sums = self._all.setdefault(stage, [0.0, 0.0, 0.0])
                sums[0] += now_s - self._at_s
                sums[1] += process_s - self._process_s
                sums[2] += others_ns - self._others_ns
            self._process_s = process_s
            self._others_ns = others_ns
        self._at_s = perf_counter()
        took_s = self._at_s - now_s
        self.spent_s += took_s
        self._reads_s[self._follows_all].append(took_s)

    def _so_far(self) -> CoreTimes:
        """Returns what all threads had used when they were looked at last, and for how long nobody looked."""
        wall_s = self._at_s - self.spent_s
        return CoreTimes(wall_s, self._process_s, self._queued_ns / 1e9, self._others_ns / 1e9)


def begin_look(
    counts_for: int, samples: int, *, rest: str = "", is_alone: bool = False
) -> StageLook | None:
    """Returns a look (see `StageLook`) that begins now; None where the system does not say for how long a thread
    waits."""
    try:
        return StageLook(counts_for, samples, rest=rest, is_alone=is_alone)
    except (OSError, ValueError):
        return None


class LookSchedule:
    """Decides at which of a loader's batches it is looked, in one process.

    Threads may share it: one that misses another's count looks a batch too early or too late.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        """Begins to count batches. At none it is looked unless `is_on`."""
        self.took_s = 0.0
        """How long the last batch took: whoever makes batches sets it."""
        self.is_on = is_on
        self._batches = 0

    def next_counts_for(self) -> int:
        """Returns for how many batches that are looked at the next one stands; 0 for most: it is not looked at."""
        if not self.is_on or self.took_s < LEAST_BATCH_S:
            return 0
        self._batches += 1
        return look_counts_for(self._batches)


def looked_batch(look: StageLook, times_s: Sequence[float]) -> LookedBatch:
    """Returns what the stages of a batch used, by a look that has ended.

    `times_s`: the seconds of each of `TIMED_STAGES` in the batch. Samples that were not followed, and other
    pieces of it, are taken to be like those that were.
    """
    took_s: dict[str, float] = {
        stage: seconds for stage, seconds in zip(TIMED_STAGES, times_s, strict=True) if seconds > 0
    }
    seen = {stage: _seen(look, stage) for stage in took_s}
    uses: dict[str, CoreTimes] = {}
    if look.rest:
        before_collate = {stage: use for stage, use in seen.items() if stage != COLLATE}
        uses = divide(look.of_samples, before_collate, took_s, look.rest)
        seen = {stage: use for stage, use in seen.items() if stage == COLLATE}
    uses |= {
        stage: use.times(took_s[stage] / use.wall_s)
        for stage, use in seen.items()
        if use.wall_s > 0
    }
    return LookedBatch(look.counts_for, tuple(uses.items()), look.cost_s)


def _seen(look: StageLook, stage: str) -> CoreTimes:
    """Returns what a stage used in the samples in which its thread was followed. The CPU time and the waits of other
    threads are known of fewer samples: they are taken to be alike in the others. Nothing where none is known."""
    own = look.own_in(stage)
    of_all = look.all_in(stage)
    if not of_all.wall_s > 0:
        return NOTHING
    likely = of_all.times(own.wall_s / of_all.wall_s)
    threads_queued_s = likely.threads_queued_s
    if look.is_alone:
        threads_queued_s = min(threads_queued_s, max(0.0, own.slept_s))
    return CoreTimes(own.wall_s, likely.cpu_s, own.queued_s, threads_queued_s)


class StageUses:
    """What the stages of a job's batches used of the cores, in those that were looked at."""

    def __init__(self) -> None:
        self._uses: dict[str, CoreTimes] = {}
        self._batches = 0
        self._cost_s = 0.0

    def add(self, batch: LookedBatch) -> None:
        """Adds a batch, as often as it counts."""
        counts_for, stages, cost_s = batch
        self._batches += counts_for
        self._cost_s += cost_s
        for stage, use in stages:
            # Pinning may have made a plain tuple or a list of it.
            counted = CoreTimes(*use).times(counts_for)
            self._uses[stage] = self._uses.get(stage, NOTHING).plus(counted)

    def facts(self) -> dict[str, Any]:
        """Returns the fact "making" of a built-in job (`recording.Making`); none where no batch was looked at."""
        if not self._batches:
            return {}
        making = {
            "stages": as_facts(self._uses),
            "looked_batches": self._batches,
            "looking_s": self._cost_s,
        }
        return {"making": making}
