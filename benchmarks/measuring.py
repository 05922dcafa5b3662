"""Ratios that hold on a noisy machine: each trial runs beside its own reference, many times in turn.

A round runs all sides of a case in short slices, one after another and back again, so that what disturbs the machine
disturbs all of them. The figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

Clock = Literal["cpu", "wall"]
SLICES = 4
"""Slices of a trial. Even: every side comes first as often as last."""


@dataclass
class Work:
    """What a side did, and what it took."""

    units: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process, all its threads. Nothing that is measured here starts processes."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the block's time."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - wall_s
        self.cpu_s += time.process_time() - cpu_s

    def add(self, other: Work) -> None:
        self.units += other.units
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s

    def rate(self, clock: Clock) -> float:
        """Units for each second."""
        return self.units / (self.cpu_s if clock == "cpu" else self.wall_s)


Side = Callable[[float], Work]
"""Works for at least that many seconds, and stops as soon as it can afterwards."""
Rates = Mapping[str, float]


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int = 5
    seconds: float = 0.4
    """What each side of a case works for in a round."""
    batch_size: int = 1000
    """Of the loaders over digits."""
    photos: int = 600
    staged_mb: int = 256
    """Size of each copy."""


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    name: str
    title: str
    open: Callable[[ExitStack, Settings], dict[str, Side]]
    """Makes everything ready; what has to be closed goes on the stack."""
    ratio: Callable[[Rates], float]
    at_least: float | None = None
    at_most: float | None = None
    clock: Clock = "cpu"
    """Wall time flaps where others use the machine; it counts where a thread waits or helps."""
    units: str = "samples"
    whole: bool = False
    """Each side does a fixed amount of work at once: one slice."""
    believable: float | None = None
    """No ratio can be above this: a median that is says that the reference was disturbed."""
    why: str = ""
    """The reason if the row is missed, where it is known and stays."""

    @property
    def asked(self) -> str:
        return asked(self.at_least, self.at_most)


@dataclass
class Row:
    """A row, measured or not seen."""

    name: str
    title: str
    at_least: float | None = None
    at_most: float | None = None
    clock: str = ""
    units: str = ""
    believable: float | None = None
    ratios: list[float] = field(default_factory=list)
    rounds: list[dict[str, Work]] = field(default_factory=list)
    note: str = ""

    @property
    def asked(self) -> str:
        return asked(self.at_least, self.at_most)

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def disturbed(self) -> bool:
        """Whether the median cannot be true."""
        return bool(self.ratios) and self.believable is not None and self.median > self.believable

    @property
    def met(self) -> bool | None:
        """Whether the median is as asked; None where nothing was asked, or measured in a way to be believed."""
        if not self.ratios or self.disturbed or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or self.median >= self.at_least) and (
            self.at_most is None or self.median <= self.at_most
        )


def asked(at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f"{at_least:g} to {at_most:g}"
    return f">= {at_least:g}" if at_least is not None else "" if at_most is None else f"<= {at_most:g}"


def measure(case: Case, settings: Settings) -> Row:
    """All rounds of a case."""
    row = Row(case.name, case.title, case.at_least, case.at_most, case.clock, case.units, case.believable)
    with ExitStack() as things, one_thread(), no_collections():
        sides = case.open(things, settings)
        slices = 1 if case.whole else SLICES
        for side in sides.values():  # brings pages, caches and branch predictors into their steady state
            side(settings.seconds / slices)
        for number in range(settings.rounds):
            done = {name: Work() for name in sides}
            order = list(sides.items())
            for turn in range(slices):
                for name, side in order if (number + turn) % 2 == 0 else reversed(order):
                    done[name].add(side(settings.seconds / slices))
            row.rounds.append(done)
            row.ratios.append(case.ratio({name: work.rate(case.clock) for name, work in done.items()}))
    row.note = case.why if row.met is False else ""
    return row


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: loaders are compared, not OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Python's garbage collector does not run in here."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def repeated(once: Callable[[Work], float]) -> Side:
    """A side of what can be done again and again. `once` times itself and returns the units it did."""

    def side(seconds: float) -> Work:
        work = Work()
        while True:
            work.units += once(work)
            if work.wall_s >= seconds:
                return work

    return side
