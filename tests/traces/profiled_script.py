"""A training whose waits are known, with torch.profiler around it where a path for its trace is given.

    python -m tests.traces.profiled_script WAIT_S WORK_S WORKERS STEPS WHERE [TRACE]

`WHERE`: when the loop calls `prof.step()`: first, last or never. Writes the share of the time that it waited for data,
by its own clock, into the file that `TOLD` names.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

TOLD = "TESTS_TOLD"
"""Environment variable: the file for the share."""
BATCH = 4
EPOCH = 50
"""Batches of an epoch."""
WARMUP_STEPS = 5
"""Steps that count in no figure."""


class Samples(Dataset[Tensor]):
    """Each takes its part of the time that a batch is to take."""

    def __init__(self, wait_s: float, n_batches: int) -> None:
        self.wait_s = wait_s
        self.n_batches = n_batches

    def __len__(self) -> int:
        return self.n_batches * BATCH

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.wait_s / BATCH)
        return torch.full((8,), float(index))


class Busy(torch.nn.Module):
    """Works for a time that is known, in operations of about a millisecond: each is an event of a trace."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)
        self.work_s = work_s
        self.weights = torch.ones(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        until = time.perf_counter() + self.work_s
        while time.perf_counter() < until:
            torch.mm(self.weights, self.weights)
        return self.linear(x).sum()  # type: ignore[no-any-return]


def train(wait_s: float, work_s: float, workers: int, steps: int, where: str, prof: Any) -> float:
    """Returns the share of the time after the warm-up in which it waited for batches."""
    torch.set_num_threads(1)
    model = Busy(work_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    # Workers take a tenth of a second to start: with them there is one epoch.
    n_batches = steps + 1 if workers else EPOCH
    loader = DataLoader(Samples(wait_s, n_batches), BATCH, num_workers=workers)
    n = 0
    waited_s = 0.0
    began_s = 0.0
    while True:
        batches = iter(loader)
        while True:
            asked_s = time.perf_counter()
            if n == WARMUP_STEPS:
                began_s = asked_s
                waited_s = 0.0
            x = next(batches, None)
            waited_s += time.perf_counter() - asked_s
            if x is None:
                break
            if where == "first" and prof is not None:
                prof.step()
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            if where == "last" and prof is not None:
                prof.step()
            n += 1
            if n == steps:
                return waited_s / (time.perf_counter() - began_s)


def main() -> None:
    wait_s, work_s = float(sys.argv[1]), float(sys.argv[2])
    workers, steps, where = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    path = sys.argv[6] if len(sys.argv) > 6 else ""
    around: Any = contextlib.nullcontext()
    if path:
        options = {"record_shapes": True, "with_stack": where == "first"}
        around = profile(activities=[ProfilerActivity.CPU], **options)
    with around as prof:
        share = train(wait_s, work_s, workers, steps, where, prof)
    if TOLD in os.environ:
        Path(os.environ[TOLD]).write_text(str(share))
    if path:
        prof.export_chrome_trace(path)


if __name__ == "__main__":
    main()
