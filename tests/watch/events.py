"""A training loop that is plain for a while, then does anything else that loops do, and is plain again."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import vitprof
from tests.watch.scripts import linear
from vitprof.watch.fast_path import SHORT_TIMES
from vitprof.watch.watcher import the_watcher

BATCH = 2
PLAIN_STEPS = 12
"""Steps between two events, of which the first five of a run are its warm-up."""


class Samples(Dataset[Any]):
    """Numbers; the dataset reads another loader, or fails, where it is told to."""

    def __init__(self) -> None:
        self.at_next: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        at_next, self.at_next = self.at_next, lambda: None
        at_next()
        return torch.full((4,), float(index % 7)), index % 3


class Training:
    """A model that trains on batches of its loader, with one method for each event."""

    def __init__(self, workers: int) -> None:
        self.model, self.optimizer = linear()
        self.samples = Samples()
        self.loader = DataLoader(self.samples, batch_size=BATCH, num_workers=workers)
        self.others = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=1)
        self.batches: Iterator[Any] = iter(self.loader)

    def loss(self, batch: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def step(self) -> None:
        self.loss(next(self.batches)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def check(self) -> None:
        with torch.no_grad():
            for (x,) in self.others:
                self.model(x)

    def check_with_gradients(self) -> None:
        for (x,) in self.others:
            self.model(x)

    def look_at_a_batch_of_its_own(self) -> None:
        with torch.no_grad():
            self.model(next(self.batches)[0])

    def train_on_another_batch_too(self) -> None:
        batch, (x,) = next(self.batches), next(iter(self.others))
        (self.loss(batch) + self.model(x).sum()).backward()
        self.optimizer.step()

    def accumulate(self) -> None:
        for _ in range(3):
            for _ in range(2):
                self.loss(next(self.batches)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def fetch_several_first(self) -> None:
        for batch in [next(self.batches) for _ in range(3)]:
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def skip_a_batch(self) -> None:
        next(self.batches)

    def differentiate_twice(self) -> None:
        batch = next(self.batches)
        for factor in (2.0, 3.0):
            (factor * self.loss(batch)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def differentiate_several(self) -> None:
        batch = next(self.batches)
        torch.autograd.backward([self.loss(batch)])
        torch.autograd.backward([self.loss(batch), 2 * self.loss(batch)])

    def differentiate_no_scalar(self) -> None:
        x = self.model(next(self.batches)[0])
        torch.autograd.backward(x, torch.ones_like(x))

    def only_step(self) -> None:
        next(self.batches)
        self.optimizer.step()

    def scale(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[no-untyped-call]
        scaler.scale(self.loss(next(self.batches))).backward()
        scaler.step(self.optimizer)
        scaler.update()

    def mark_steps(self) -> None:
        for _ in range(2):
            batch = next(self.batches)
            with vitprof.step():
                self.loss(batch).backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
        with vitprof.step():
            self.step()

    def begin_anew(self) -> None:
        self.batches = iter(self.loader)

    def begin_another_one_beside(self) -> None:
        next(iter(self.loader))

    def train_on_another_loader(self) -> None:
        self.loader = DataLoader(self.samples, batch_size=2 * BATCH)
        self.batches = iter(self.loader)

    def read_another_loader_meanwhile(self) -> None:
        def read() -> None:
            with torch.no_grad():
                next(iter(self.others))
            list(self.others)

        self.samples.at_next = read
        self.step()

    def fail(self) -> None:
        self.samples.at_next = lambda: 1 // 0  # type: ignore[assignment, return-value]
        with contextlib.suppress(ZeroDivisionError):
            next(self.batches)

    def end_an_epoch(self) -> None:
        self.batches = iter(
            DataLoader(torch.utils.data.Subset(self.samples, range(7)), batch_size=BATCH)
        )
        for batch in self.batches:
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        self.batches = iter(self.loader)


EVENTS = [
    name for name in vars(Training) if not name.startswith("_") and name not in ("loss", "step")
]


def train(*, events: list[str], workers: int = 0) -> str:
    """Trains, with the events in between; returns the weights it ends with, exact to the bit."""
    training = Training(workers)
    for event in itertools.chain([""], events):
        if event:
            getattr(training, event)()
        for _ in range(PLAIN_STEPS):
            training.step()
    return str([weight.hex() for weight in training.model.weight.flatten().tolist()])


def are_plain(*, workers: int = 0) -> list[bool]:
    """Trains two epochs; returns whether the loop counted as plain after each step."""
    training, found = Training(workers), []
    for _ in range(2):
        training.begin_anew()
        for _ in range(PLAIN_STEPS):
            training.step()
            found.append(the_watcher().plain.on)
    return found


def tried(*, events: list[str]) -> bool:
    """Trains, with the events in between; returns whether the loop may still be taken for plain."""
    train(events=events)
    return the_watcher().plain.short_times < SHORT_TIMES


def left_alone(*, forks: bool) -> list[bool]:
    """Trains until the loop is plain; then it is watched no more: in a fork of its process, or because of an error.
    Returns whether the loop is plain before and after, and after another step."""
    training, loop = Training(0), the_watcher()
    for _ in range(PLAIN_STEPS):
        training.step()
    found = [loop.plain.on]
    reading, writing = os.pipe()
    if forks and os.fork():
        return found + list(map(bool, os.read(reading, 2)))
    if not forks:
        loop.guard.give_up("a defect")
    found.append(loop.plain.on)
    training.step()
    found.append(loop.plain.on)
    if forks:
        os.write(writing, bytes(found[1:]))
        os._exit(0)
    return found
