"""Measures ratios that hold on a noisy machine: each trial runs beside its own reference, many times in turn.

A round runs all sides of a case in short slices, one after another and back again, so that a disturbance of the machine
affects all of them. The figure is the median of the rounds' ratios.
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
"""Slices of a trial. An even number, so that every side comes first as often as last."""


@dataclass
class Work:
    """The units of work that a side did, and the time they took."""

    units: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process, all its threads. Nothing that is measured here starts other processes."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of the block."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - wall_s
        self.cpu_s += time.process_time() - cpu_s

    def add(self, other: Work) -> None:
        self.units += other.units
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s

    def rate(self, clock: Clock) -> float:
        """Returns units a second, on this clock."""
        return self.units / (self.cpu_s if clock == "cpu" else self.wall_s)


Side = Callable[[float], Work]
"""Works for at least the given seconds, and stops as soon as it can after them."""
Rates = Mapping[str, float]


@dataclass(frozen=True)
class Settings:
    """How much to measure."""

    rounds: int = 5
    seconds: float = 0.4
    """How long each side of a case works in a round."""
    batch_size: int = 1000
    """Batch size of the loaders over digits."""
    photos: int = 600
    """Number of training images of the data set photos."""
    staged_mb: int = 256
    """Size of each copy."""


@dataclass(frozen=True)
class Case:
    """A comparison to measure: a row of the table."""

    name: str
    title: str
    open: Callable[[ExitStack, Settings], dict[str, Side]]
    """Prepares and returns the sides by name; what has to be closed goes on the stack."""
    ratio: Callable[[Rates], float]
    at_least: float | None = None
    at_most: float | None = None
    clock: Clock = "cpu"
    """Wall time is noisy where other programs use the machine; it is needed where a thread waits or helps."""
    units: str = "samples"
    whole: bool = False
    """Whether each side does a fixed amount of work at once, in one slice."""
    believable: float | None = None
    """The largest ratio that is possible: a median above it means that the reference was disturbed."""
    why: str = ""
    """Why the gate is missed, where the reason is known and cannot be helped."""

    @property
    def asked(self) -> str:
        return asked(self.at_least, self.at_most)


@dataclass
class Row:
    """A row of the table, measured or not seen."""

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
        """Returns whether the median is larger than is possible."""
        return bool(self.ratios) and self.believable is not None and self.median > self.believable

    @property
    def met(self) -> bool | None:
        """Returns whether the median meets the gate; None where there is no gate, or no believable measurement."""
        if not self.ratios or self.disturbed or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or self.median >= self.at_least) and (
            self.at_most is None or self.median <= self.at_most
        )


def asked(at_least: float | None, at_most: float | None) -> str:
    """Returns the gate in words, such as ">= 0.9"; "" where there is none."""
    if at_least is not None and at_most is not None:
        return f"{at_least:g} to {at_most:g}"
    return (
        f">= {at_least:g}" if at_least is not None else "" if at_most is None else f"<= {at_most:g}"
    )


def measure(case: Case, settings: Settings) -> Row:
    """Runs all rounds of a case and returns its row."""
    row = Row(
        case.name, case.title, case.at_least, case.at_most, case.clock, case.units, case.believable
    )
    with ExitStack() as things, one_thread(), no_collections():
        sides = case.open(things, settings)
        slices = 1 if case.whole else SLICES
        for (
            side
        ) in sides.values():  # brings pages, caches and branch predictors into their steady state
            side(settings.seconds / slices)
        for number in range(settings.rounds):
            done = {name: Work() for name in sides}
            order = list(sides.items())
            for turn in range(slices):
                for name, side in order if (number + turn) % 2 == 0 else reversed(order):
                    done[name].add(side(settings.seconds / slices))
            row.rounds.append(done)
            row.ratios.append(
                case.ratio({name: work.rate(case.clock) for name, work in done.items()})
            )
    row.note = case.why if row.met is False else ""
    return row


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch on one thread in the block: loaders are compared, not OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Turns Python's garbage collector off in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def repeated(once: Callable[[Work], float]) -> Side:
    """Returns a side that repeats `once`, which times itself and returns the units it did."""

    def side(seconds: float) -> Work:
        work = Work()
        while True:
            work.units += once(work)
            if work.wall_s >= seconds:
                return work

    return side
