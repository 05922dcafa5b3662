"""Measures what a faster stage would gain: in blocks of steps one stage seems faster (`causal_ledger`).

The core says which loader trains; until then no stage does.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from vitprof.watch.causal_ledger import STAGES, Ledger, Maker, SharedWords
from vitprof.watch.events import Description
from vitprof.watch.fetch_times import FetchTimes, passed_on
from vitprof.watch.patches.train_loader import TrainLoader

FRACTIONS = (0.25, 0.5)
"""A quarter is what is told. Twice as fast shows where something else takes over. A tenth would say less than either
in as many steps."""
USUAL_PER_ROUND = 2
"""Blocks in a round in which no stage seems faster: as many as a stage has."""
SETTLE_STEPS = 2
"""Steps left out at the beginning of a block, besides those until all batches that were ahead have come."""
AT_ONCE = 0.99
"""The fraction by which compute seems faster at the beginning of a block, until no batch is ready: see `CausalPlan`."""
BLOCK_STEPS, BLOCK_S = 10, 0.3
"""The least number of steps that count in a block, and their least time (s)."""
COUNTED_FRAC = 2
"""A block has so many times as many steps that count as that are left out, at least."""
LOOK_STEPS = 20
"""Least number of steps of the first block, which shows what the stages take."""
LEAST_FRAC = 0.02
"""A stage that takes a smaller share of a step is not tried: twice as fast, it would gain 1%."""
MOST_BLOCKS = 2000
MOST_TRIES = 5
"""Blocks in succession that an epoch's end may cut short."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What seems faster in a block."""

    stage: str = ""
    """Empty where nothing does."""
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockStart:
    """Where the steps that count in a block begin."""

    at_s: float
    settled_s: float
    """What the training process had settled by then."""
    owed_s: float
    """What was owed in all."""


class CausalPlan:
    """Which stage seems faster in which steps, and what each block took.

    Each block begins with no batch ready. Workers that are a little faster or slower than the loop take a hundred steps
    to fill the queue or to empty it, and until then a step takes what it took in the block before. From an empty queue
    on it takes what it will: the loop waits at once where workers are slower. So the work on the batches that are ready
    seems to take no time.

    All calls come from the thread that trains, but `begin` and `refuse`. It never sleeps: whoever calls lets the
    process pause for what `ledger` says is due, before a request and before indices are passed on.
    """

    def __init__(
        self,
        words: SharedWords,
        describe: Callable[[dict[str, Any]], object],
        draw: random.Random | None = None,
    ) -> None:
        """`describe` takes what is known of a block that has ended."""
        self._words = words
        self._describe = describe
        self._draw = draw or random.Random()  # the script's own numbers stay as they are
        self.ledger = Ledger(words, 0)
        self.maker = Maker(self.ledger, is_worker=False)
        self._train = TrainLoader()
        self._n_emptying = 0
        """Steps at the beginning of a block in which the queue is emptied."""
        self._n_settle = SETTLE_STEPS
        self._has_workers = False
        self._stages: list[str] = []
        """Those that are tried."""
        self._cell = Cell()
        self._cells: list[Cell] = []
        """Those that are left of the round."""
        self._round = 0
        self._n_blocks = 0
        self._n_tried = 0
        """Blocks that were begun."""
        self._n_cut_short = 0
        """Blocks in succession that something else than a step has ended."""
        self._n = 0
        """The requests in the block so far."""
        self._start: BlockStart | None = None
        self._took = defaultdict[str, float](float)
        """The seconds in each stage, over the steps that count in the block."""
        self._asked_s = 0.0
        """When the batch that comes next was requested."""
        self._passed_on_s = 0.0
        """When a worker had passed it on; 0 where that is not known."""
        self._not_handing_s = 0.0
        """What the thread did else since it was requested: sampling and pauses."""
        self._received_s: float | None = None
        """When the last batch came; None where a step does not follow it."""
        self._over = False
        self.refused = ""

    def begin(self, loader: int, facts: dict[str, Any]) -> None:
        """Begins, with the number and the facts of the loader that trains."""
        workers = facts.get("num_workers") or 0
        ahead = workers * (facts.get("prefetch_factor") or 2)
        self._has_workers = workers > 0
        self._n_emptying = ahead + 1 if workers else 0
        self._n_settle = self._n_emptying + SETTLE_STEPS + ahead + workers
        self._train.name(loader, facts)

    def is_of(self, loader: Description | None) -> bool:
        """Returns whether a loader is the one that trains."""
        return loader is not None and self._train.is_it(loader)

    @property
    def block(self) -> int:
        """Returns the number of the block: odd where a stage seems faster."""
        return 2 * self._n_tried + (self._cell.fraction > 0)

    def worked(self, now_s: float) -> None:
        """Notes that the loop is about to request a batch, and was at work since it got the one before."""
        if self._received_s is not None:
            self._ran("compute", now_s - self._received_s)
            self._received_s = None

    def request(self, now_s: float) -> bool:
        """Notes a request of the loader that trains, after the pause that was due. Returns whether the step that it
        begins is left out of its block, which is settling."""
        self._asked_s = now_s
        self._passed_on_s = 0.0
        self._not_handing_s = 0.0
        if self._start is not None:
            self._end_block(self._start, now_s)
        if self._n == 0 and not self._over:
            self._begin_block()
        if self._over:
            return False
        if self._n == self._n_emptying:
            self._speed_up(self._cell)
        if self._n == self._n_settle:
            self._start = BlockStart(now_s, self.ledger.settled_s, self._words.owed_s())
            self._took.clear()
        self._n += 1
        return self._n <= self._n_settle

    def awaited(self, now_s: float, passed_on_s: float, settled_s: float) -> None:
        """Notes that the batch is there which was requested: when its worker passed it on, and what that had settled
        by then."""
        self._passed_on_s = passed_on_s
        self.ledger.waited(now_s - self._asked_s, settled_s)

    def paused(self, seconds: float) -> None:
        """Notes a pause between a request and its batch, which `ledger` knows of."""
        self._not_handing_s += seconds

    def sampled(self, seconds: float) -> None:
        """Notes how long the sampler took for the indices of a batch."""
        self._not_handing_s += seconds
        self._ran("sampler", seconds)

    def received(self, now_s: float) -> None:
        """Notes that the loop gets its batch."""
        self._received_s = now_s
        if self._has_workers and self._passed_on_s:
            since_s = max(self._asked_s, self._passed_on_s)
            self._ran("hand-over", max(0.0, now_s - since_s - self._not_handing_s))

    def made(self, read_s: float, transform_s: float, collate_s: float) -> None:
        """Notes what the stages of the batch that came have taken, wherever it was made."""
        self._took["read"] += read_s
        self._took["transform"] += transform_s
        self._took["collate"] += collate_s

    def interrupt(self) -> None:
        """Begins the block anew with the next request: an epoch begins, or something else than a step was between."""
        self._received_s = None
        self._words.end()
        if self._start is not None or self._n > 0:
            self._n_cut_short += 1
        self._start = None
        if self._n_cut_short >= MOST_TRIES and not self._over:
            needed = self._n_settle + self._n_needed
            self.refuse(f"a block needs {needed} steps without an epoch's end or an evaluation")
        self._n = 0

    def refuse(self, why: str) -> None:
        """Makes no stage seem faster from here on. `why`: empty where all blocks are done."""
        self._over = True
        self._start = None
        self.refused = why
        self._words.end()
        self._cell = Cell()
        if why:
            self._describe({"refused": why})

    def _ran(self, stage: str, seconds: float) -> None:
        self._took[stage] += seconds
        self.ledger.ran(STAGES.index(stage) + 1, seconds)

    def _begin_block(self) -> None:
        self._n_tried += 1
        self._speed_up(Cell("compute", AT_ONCE) if self._n_emptying else self._cell)

    @property
    def _n_needed(self) -> int:
        """Returns how many steps have to count in a block."""
        return max(BLOCK_STEPS if self._stages else LOOK_STEPS, COUNTED_FRAC * self._n_settle)

    def _speed_up(self, cell: Cell) -> None:
        self._words.speed_up(STAGES.index(cell.stage) + 1 if cell.stage else 0, cell.fraction)

    def _end_block(self, start: BlockStart, now_s: float) -> None:
        """Notes what the block took, if it is long enough by now, and draws the next one."""
        n_steps = self._n - self._n_settle
        took_s = now_s - start.at_s
        if n_steps < self._n_needed or took_s < BLOCK_S:
            return
        self._start = None
        self._n = 0
        self._n_blocks += 1
        self._n_cut_short = 0
        if self._stages:
            told = {
                "round": self._round,
                "stage": self._cell.stage,
                "fraction": self._cell.fraction,
                "steps": n_steps,
                "wall_s": took_s,
                "effective_s": took_s - (self.ledger.settled_s - start.settled_s),
                "saved_s": self._words.owed_s() - start.owed_s,
                "stage_s": self._took[self._cell.stage],
            }
            self._describe({"block": told})
        else:
            self._choose(n_steps, took_s)
        if not self._stages or self._n_blocks == MOST_BLOCKS:
            self.refuse("")
            return
        if not self._cells:
            self._round += 1
            self._cells = [Cell(stage, f) for stage in self._stages for f in FRACTIONS]
            self._cells += [Cell()] * USUAL_PER_ROUND
            self._draw.shuffle(self._cells)
        self._cell = self._cells.pop()

    def _choose(self, n_steps: int, took_s: float) -> None:
        """Chooses the stages that are tried, after the first block."""
        stage_s = {stage: self._took[stage] for stage in STAGES}
        self._stages = [s for s in STAGES if stage_s[s] >= LEAST_FRAC * took_s]
        look = {
            "steps": n_steps,
            "wall_s": took_s,
            "stage_s": stage_s,
            "tried": self._stages,
            "blocks_per_round": len(FRACTIONS) * len(self._stages) + USUAL_PER_ROUND,
            "settle": self._n_settle,
            "needed": self._n_needed,
        }
        self._describe({"look": look})


class CausalHooks:
    """What hooks tell a plan, and where the thread that trains pauses."""

    def __init__(self, plan: CausalPlan) -> None:
        self.plan = plan
        self._trains = False
        """Whether the batch that was requested last is one to train on."""

    def before_request(self, loader: Description | None, *, gradients: bool) -> None:
        """Takes a request for a batch that is about to be made; pauses for what is due."""
        self._trains = gradients and self.plan.is_of(loader)
        if not self._trains:
            self.plan.interrupt()
            return
        self.plan.worked(perf_counter())
        self.plan.ledger.pay()

    def requested(self, now_s: float) -> int:
        """Takes that request as it was recorded. Returns the number of its block: odd where its step is none of the
        run."""
        if not self._trains:
            return 0
        settles = self.plan.request(now_s)
        return self.plan.block | int(settles)

    def came(self, delivered: Any) -> None:
        """Takes what a worker has sent as the batch that was requested; pauses before more indices are given out."""
        sent = passed_on(delivered) if self._trains else None
        if sent is None:
            return
        self.plan.awaited(perf_counter(), *sent)
        since_s = perf_counter()
        self.plan.ledger.pay()
        self.plan.paused(perf_counter() - since_s)

    def sampled(self, seconds: float) -> None:
        """Takes how long a sampler took for the indices of a batch."""
        if self._trains:
            self.plan.sampled(seconds)

    def received(self, now_s: float, times: FetchTimes | None) -> None:
        """Takes a batch that came, and how it was made."""
        if not self._trains:
            return
        if times is not None:
            dataset_s, transform_s, collate_s, *_ = times
            self.plan.made(max(0.0, dataset_s - transform_s), transform_s, collate_s)
        self.plan.received(now_s)

    def breaks(self, loader: Description | None) -> None:
        """Takes an iteration that was begun, or whose workers are about to end."""
        if self.plan.is_of(loader):
            self._trains = False
            self.plan.interrupt()
