"""A training script of whose samples a few take sixty times as long as the others, each from a file of its own."""

import os
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

N_SAMPLES, BATCH, EPOCHS, WARMUP = 320, 8, 2, 5
USUAL_S, SLOW_S, BODY_S = 0.002, 0.12, 0.012
SLOW = tuple(range(7, N_SAMPLES, 29))


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


def train(workers: int, is_slow: bool) -> str:
    """Returns how long it took after the warm-up, by its own clock."""
    torch.manual_seed(1)
    loader = DataLoader(
        Uneven(SLOW if is_slow else ()),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(2),
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
