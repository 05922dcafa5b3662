"""A DataLoader's pipeline, simulated: workers, queues, a loop that trains, and the pauses of a causal profile.

Times are drawn, nothing sleeps. Where a stage is really made faster, the simulation says what that gains.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitprof.watch.causal_ledger import Ledger, Maker, SharedWords
from vitprof.watch.core.causal_blocks import KIND, CausalBlocks
from vitprof.watch.events import Description
from vitprof.watch.patches.causal import CausalPlan

MADE = ("read", "transform", "collate")
"""The stages in which a batch is made."""
LOADER = 7
OVERSLEPT_S = 6e-5
SENDING_S = 4e-5
"""From a worker's batch to its next one."""


class Channel:
    """A queue that one process reads."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.reader: Process | None = None
        """The process that waits for an item."""


Process = Generator["float | Channel", Any, None]
"""It gives the seconds for which it is busy or sleeps, or the queue from which it wants an item."""


class Engine:
    """Runs processes against a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now_s + seconds, next(self._count), what))

    def start(self, process: Process) -> None:
        self.later(0.0, lambda: self._go_on(process, None))

    def put(self, channel: Channel, item: Any) -> None:
        channel.items.append(item)
        reader = channel.reader
        if reader is not None:
            channel.reader = None
            self.later(0.0, lambda: self._go_on(reader, channel.items.popleft()))

    def run(self, is_over: Callable[[], bool]) -> None:
        while self._later and not is_over():
            self.now_s, _, what = heapq.heappop(self._later)
            what()

    def _go_on(self, process: Process, item: Any) -> None:
        while True:
            try:
                wanted = process.send(item)
            except StopIteration:
                return
            if isinstance(wanted, float):
                self.later(wanted, lambda: self._go_on(process, None))
                return
            if not wanted.items:
                wanted.reader = process
                return
            item = wanted.items.popleft()


@dataclass(frozen=True)
class Pipeline:
    """What a step of a training takes."""

    costs: Mapping[str, float]
    """Mean seconds by stage."""
    workers: int = 0
    prefetch: int = 2
    jitter: float = 0.2
    """Of each time, as a standard deviation of its logarithm."""


@dataclass
class Outcome:
    """What a simulated run took, and what was noted of its blocks."""

    step_s: float
    """Mean time of a step, after the first ones."""
    blocks: list[dict[str, Any]] = field(default_factory=list)


def run(
    pipeline: Pipeline,
    n_steps: int,
    seed: int,
    *,
    faster: Mapping[str, float] | None = None,
    is_profiled: bool = False,
) -> Outcome:
    """Simulates so many steps. `faster`: the fraction by which a stage really is faster. `is_profiled`: whether
    stages seem faster in blocks."""
    return Run(pipeline, seed, faster or {}, is_profiled=is_profiled).go(n_steps)


class Run:
    """A simulated run."""

    def __init__(
        self, pipeline: Pipeline, seed: int, faster: Mapping[str, float], *, is_profiled: bool
    ) -> None:
        self._pipeline = pipeline
        self._engine = Engine()
        self._faster = faster
        self._draws: dict[str, random.Random] = {}
        self._seed = seed
        self._indices = [Channel() for _ in range(pipeline.workers)]
        self._batches = Channel()
        self._came: dict[int, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._words = SharedWords([0.0] * (pipeline.workers + 2))
        self._plan: CausalPlan | None = None
        self._ends: list[float] = []
        if is_profiled:
            self._plan = CausalPlan(self._words, self._blocks.append, random.Random(seed))
            facts = {"num_workers": pipeline.workers, "prefetch_factor": pipeline.prefetch}
            self._plan.begin(LOADER, facts)

    def go(self, n_steps: int) -> Outcome:
        for number in range(self._pipeline.workers):
            self._engine.start(self._worker(number))
        self._engine.start(self._loop())
        self._engine.run(lambda: len(self._ends) >= n_steps)
        settled = len(self._ends) // 10
        took_s = self._ends[-1] - self._ends[settled]
        return Outcome(took_s / (len(self._ends) - 1 - settled), self._blocks)

    def _draw(self, stage: str, who: int = -1) -> float:
        """Returns what a stage takes this time: the same as in another run of this seed, but for how much
        faster it is."""
        mean_s = self._pipeline.costs.get(stage, 0.0)
        if not mean_s:
            return 0.0
        draw = self._draws.setdefault(f"{stage}{who}", random.Random(f"{self._seed} {stage} {who}"))
        sigma = self._pipeline.jitter
        factor = draw.lognormvariate(-sigma * sigma / 2, sigma)
        return mean_s * factor * (1 - self._faster.get(stage, 0.0))

    def _pause(self, ledger: Ledger) -> Generator[float, None, float]:
        """Pauses for what is due; returns for how long."""
        due_s = ledger.due_s()
        if not due_s:
            return 0.0
        yield due_s + OVERSLEPT_S
        ledger.paused(due_s + OVERSLEPT_S)
        return due_s + OVERSLEPT_S

    def _worker(self, number: int) -> Process:
        engine = self._engine
        ledger = Ledger(self._words, number + 1)
        maker = Maker(ledger, is_worker=True)
        while True:
            n = yield self._indices[number]
            maker.begin(engine.now_s)
            took = [self._draw(stage, number) for stage in MADE]
            yield math.fsum(took)
            maker.made(*took)
            yield from self._pause(ledger)
            maker.sent(engine.now_s)
            batch = (n, engine.now_s, ledger.settled_s, took)
            engine.later(
                self._draw("hand-over", number),
                lambda batch=batch: engine.put(self._batches, batch),
            )
            yield SENDING_S

    def _loop(self) -> Process:
        engine = self._engine
        plan = self._plan
        workers = self._pipeline.workers
        n_sent = 0
        for _ in range(workers * self._pipeline.prefetch):
            engine.put(self._indices[n_sent % workers], n_sent)
            n_sent += 1
        for n in itertools.count():
            if plan is not None:
                plan.worked(engine.now_s)
                yield from self._pause(plan.ledger)
                plan.request(engine.now_s)
            if workers:
                while n not in self._came:
                    batch = yield self._batches
                    self._came[batch[0]] = batch
                _, passed_on_s, settled_s, took = self._came.pop(n)
                if plan is not None:
                    plan.awaited(engine.now_s, passed_on_s, settled_s)
                    plan.paused((yield from self._pause(plan.ledger)))
                yield from self._sample()
                engine.put(self._indices[n_sent % workers], n_sent)
                n_sent += 1
            else:
                yield from self._sample()
                took = [self._draw(stage) for stage in MADE]
                yield math.fsum(took)
                if plan is not None:
                    plan.maker.made(*took)
            if plan is not None:
                plan.made(*took)
                plan.received(engine.now_s)
            yield self._draw("compute")
            self._ends.append(engine.now_s)

    def _sample(self) -> Generator[float, None, None]:
        sampler_s = self._draw("sampler")
        yield sampler_s
        if self._plan is not None:
            self._plan.sampled(sampler_s)


def facts_of(described: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the fact "causal" of a run whose blocks were described like that."""
    descriptions = [Description(n, KIND, facts) for n, facts in enumerate(described)]
    return dict(CausalBlocks().facts(descriptions, finished=True)["causal"])
