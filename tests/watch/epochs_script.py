"""Training over several epochs, whose next iterators a trial may begin early: with random numbers in the workers, and
on request with some that are drawn between epochs, or with a sampler that is told its epoch.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES = 24
BATCH = 4
EPOCHS = 3


class Noisy(Dataset[torch.Tensor]):
    """Samples of which workers draw a part."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.rand(4)


def train() -> str:
    """Returns the losses with nothing between epochs, and how many iterators had begun as each ended."""
    return _train(DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2))


def train_and_validate() -> str:
    """Returns the losses of training with a validation after each epoch."""
    return _train(DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2), validates=True)


def train_by_epochs() -> str:
    """Returns the losses of training whose sampler is told each epoch."""
    sampler = DistributedSampler(Noisy(), num_replicas=1, rank=0)  # type: ignore[var-annotated]
    return _train(DataLoader(Noisy(), BATCH, sampler=sampler, num_workers=2), sampler=sampler)


def _train(loader: Any, *, validates: bool = False, sampler: Any = None) -> str:
    torch.manual_seed(1)
    others = DataLoader(Noisy(), BATCH)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    n_begun = []
    begin = loader._get_iterator
    iterators = []

    def counted() -> Any:
        iterators.append(None)
        return begin()

    loader._get_iterator = counted
    for epoch in range(EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        n_begun.append(len(iterators))
        if validates:
            with torch.no_grad():
                for batch in others:
                    model(batch)
    return json.dumps({"losses": losses, "begun": n_begun})
