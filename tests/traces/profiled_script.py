"""A training whose waits are known, with torch.profiler around it where a path for its trace is given.

    python -m tests.traces.profiled_script WAIT_S WORK_S WORKERS STEPS WHERE [TRACE]

`WHERE`: when the loop calls `prof.step()`: first, last or never.
"""

import contextlib
import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

BATCH = 4
EPOCH = 50
"""Batches of an epoch."""


class Samples(Dataset[Tensor]):
    """Each takes its part of the time that a batch is to take."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __len__(self) -> int:
        return EPOCH * BATCH

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.wait_s / BATCH)
        return torch.full((8,), float(index))


class Busy(torch.nn.Module):
    """Works for a time that is known, in many small operations."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)
        self.work_s = work_s
        self.weights = torch.ones(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        until = time.perf_counter() + self.work_s
        while time.perf_counter() < until:
            torch.mm(self.weights, self.weights)
        return self.linear(x).sum()  # type: ignore[no-any-return]


def train(wait_s: float, work_s: float, workers: int, steps: int, where: str, prof: Any) -> None:
    torch.set_num_threads(1)
    model = Busy(work_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Samples(wait_s), BATCH, num_workers=workers)
    n = 0
    while True:
        for x in loader:
            if where == "first" and prof is not None:
                prof.step()
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            if where == "last" and prof is not None:
                prof.step()
            n += 1
            if n == steps:
                return


def main() -> None:
    wait_s, work_s = float(sys.argv[1]), float(sys.argv[2])
    workers, steps, where = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    path = sys.argv[6] if len(sys.argv) > 6 else ""
    around: Any = contextlib.nullcontext()
    if path:
        options = {"record_shapes": True, "with_stack": where == "first"}
        around = profile(activities=[ProfilerActivity.CPU], **options)
    with around as prof:
        train(wait_s, work_s, workers, steps, where, prof)
    if path:
        prof.export_chrome_trace(path)


if __name__ == "__main__":
    main()
