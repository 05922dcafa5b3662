"""Training scripts of whose samples a few, or every k-th, take many times as long as the others, or one worker's do."""

import os
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

N_SAMPLES, BATCH, EPOCHS, WARMUP = 320, 8, 2, 5
USUAL_S, SLOW_S, BODY_S = 0.002, 0.12, 0.012
SLOW = tuple(range(7, N_SAMPLES, 29))
EVERY, FIRST, EVERY_S = 8, 5, 0.02
SLOW_WORKER, SLOWER = 1, 2.1


class Uneven(Dataset[Any]):
    def __init__(self, slow: tuple[int, ...]) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in SLOW:
            with open(__file__, "rb") as file:
                file.read(1)
        time.sleep(SLOW_S if index in self.slow else USUAL_S)
        return torch.full((4,), float(index)), index % 3


class EveryKth(Uneven):
    def __init__(self) -> None:
        super().__init__(())

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % EVERY == FIRST:
            time.sleep(EVERY_S)
        return super().__getitem__(index)


class OfWorkers(Uneven):
    """Is read by one worker that is slower than the others."""

    usual_s = USUAL_S

    def __init__(self) -> None:
        super().__init__(())

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(OfWorkers.usual_s)
        return torch.full((4,), float(index)), index % 3


def slow_down(worker: int) -> None:
    if worker == SLOW_WORKER:
        OfWorkers.usual_s = SLOWER * USUAL_S


def train(workers: int, is_slow: bool) -> str:
    """Returns how long it took after the warm-up, by its own clock."""
    return _train(Uneven(SLOW if is_slow else ()), workers)


def train_on_every_kth(workers: int) -> str:
    return _train(EveryKth(), workers)


def train_with_a_slow_worker(workers: int) -> str:
    return _train(OfWorkers(), workers, worker_init_fn=slow_down)


def _train(dataset: Uneven, workers: int, **arguments: Any) -> str:
    torch.manual_seed(1)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(2),
        **arguments,
    )
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = 0
    since_s = 0.0
    for _ in range(EPOCHS):
        for x, y in loader:
            if steps == WARMUP:
                since_s = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(BODY_S)
            steps += 1
    return f"{time.perf_counter() - since_s:.6f} {os.getpid()}"
