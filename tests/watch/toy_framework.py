"""A training framework of a few lines, and a callback that supports it: what a file in `watch/callbacks/` takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.watch.scripts import BATCH, BODY_S, Samples, collate, linear
from vitprof.watch.callbacks import FrameworkRun

BETWEEN_S = 0.003
"""What the framework does between two steps."""


class Toy:
    """A framework: it has the loop, and calls `callback.on_<event>()`."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def fit(self, loader: Any, step: Callable[[Any], None], epochs: int) -> None:
        self._callback.on_begin(loader)
        for _ in range(epochs):
            for batch in loader:
                time.sleep(BETWEEN_S)
                self._callback.on_step_begin()
                step(batch)
                self._callback.on_step_end()
        self._callback.on_end()


class ToyCallback:
    """All that the support of the framework takes."""

    def __init__(self, name: str) -> None:
        run = FrameworkRun(name)
        self.on_begin, self.on_end = run.begin, run.end
        self.on_step_begin, self.on_step_end = run.enter_step, run.leave_step


def train(*, workers: int) -> str:
    """Trains with the framework, two epochs; returns the losses to the bit."""
    (model, optimizer), losses = linear(), []

    def step(batch: Any) -> None:
        time.sleep(BODY_S)
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item().hex())

    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=workers, collate_fn=collate)
    Toy(ToyCallback("toy")).fit(loader, step, epochs=2)
    return str(losses)
