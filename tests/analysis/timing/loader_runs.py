"""Runs of a DataLoader that nobody measured: its queue by events, one after the other, as PyTorch's works."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from tests.series import made_steps
from vitprof.analysis.arrays import Floats

HANDED_S = 0.002


@dataclass
class LoaderRun:
    """The steps of a run, and how long it took."""

    steps: dict[str, Floats]
    took_s: float


@dataclass
class _Queue:
    """What happens next, and who is busy."""

    made_s: Floats
    workers: int
    idle_s: float
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    pending: dict[int, list[int]] = field(default_factory=dict)
    """By worker: batches that were requested of it and not begun."""
    is_busy: set[int] = field(default_factory=set)
    begun_s: dict[int, float] = field(default_factory=dict)
    ready_s: dict[int, float] = field(default_factory=dict)

    def request(self, at_s: float, batch: int) -> None:
        if batch < len(self.made_s):
            self.pending.setdefault(batch % self.workers, []).append(batch)
            self.begin(at_s, batch % self.workers)

    def begin(self, at_s: float, worker: int) -> None:
        if worker in self.is_busy or not self.pending.get(worker):
            return
        batch = self.pending[worker].pop(0)
        self.is_busy.add(worker)
        begun_s = at_s + self.idle_s
        self.begun_s[batch] = begun_s
        heapq.heappush(self.events, (begun_s + self.made_s[batch], batch, "made", worker))

    def until_ready(self, batch: int) -> None:
        """Lets happen what comes before a batch is ready."""
        while batch not in self.ready_s:
            self.next_event()

    def until(self, now_s: float) -> None:
        while self.events and self.events[0][0] <= now_s:
            self.next_event()

    def next_event(self) -> None:
        at_s, batch, _, worker = heapq.heappop(self.events)
        self.ready_s[batch] = at_s
        self.is_busy.discard(worker)
        self.begin(at_s, worker)


def run_of(
    made_s: Floats,
    work_s: Floats,
    workers: int,
    prefetch: int = 2,
    start_s: float = 0.1,
    idle_s: float = 0.0,
) -> LoaderRun:
    """Returns one epoch: `made_s`, `work_s`: (n,) seconds that each batch takes to make, and to train on;
    `idle_s`: what a worker takes before it begins with one."""
    n = len(made_s)
    waits = np.zeros(n)
    begun = np.zeros(n)
    ends = np.zeros(n)
    now_s = 0.0
    queue = _Queue(made_s, max(1, workers), idle_s)
    for batch in range(workers * prefetch):
        queue.request(start_s, batch)
    for batch in range(n):
        if not workers:
            begun[batch] = now_s
            ends[batch] = now_s + made_s[batch]
            got_s = ends[batch] + HANDED_S
        else:
            queue.until(now_s)
            queue.until_ready(batch)
            begun[batch] = queue.begun_s[batch]
            ends[batch] = queue.ready_s[batch]
            got_s = max(now_s, ends[batch] + HANDED_S)
            queue.until(got_s)
            queue.request(got_s, batch + workers * prefetch)
        waits[batch] = got_s - now_s
        now_s = got_s + work_s[batch]
    worker = np.arange(n) % workers if workers else np.nan
    steps = made_steps(
        waits,
        work_s,
        warmup=5,
        made_start_s=begun + 100.0,
        made_end_s=ends + 100.0,
        worker=worker,
    )
    return LoaderRun(steps, now_s)
