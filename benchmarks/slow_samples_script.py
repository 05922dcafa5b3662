"""Trains a tiny model for one epoch on a folder of images: `benchmarks.slow_samples` watches it.

    python -m benchmarks.slow_samples_script FOLDER WORKERS

Prints how long it took after the warm-up, by its own clock (s).
"""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

BATCH = 16
WARMUP = 5
"""Steps that vitprof leaves out, too."""
SEED = 2
"""Of the order: none of the slow images is in the warm-up."""
SIDE = 64


def train(folder: str, workers: int) -> float:
    """Returns how long the steps after the warm-up took (s)."""
    torch.manual_seed(1)
    images = ImageFolder(folder, Compose([Resize((SIDE, SIDE)), ToTensor()]))
    loader = DataLoader(
        images,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(SEED),
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    since_s = 0.0
    for step, (x, y) in enumerate(loader):
        if step == WARMUP:
            since_s = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - since_s


if __name__ == "__main__":
    print(f"{train(sys.argv[1], int(sys.argv[2])):.6f}")
