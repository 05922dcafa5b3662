"""A training script whose batches are lists of small tensors, made by a worker."""

import json
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as dataloader_module

BATCH, STEPS = 4, 8


class Small(Dataset[Any]):
    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.full((4,), float(index)), torch.tensor([index % 3])]


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def train() -> str:
    """Returns the losses as they are, and the classes of what came through the queue of its workers."""
    torch.manual_seed(1)
    loader = DataLoader(Small(), batch_size=BATCH, num_workers=1, collate_fn=as_list)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    crossed = set()
    batches: Any = iter(loader)
    get_data = dataloader_module._MultiProcessingDataLoaderIter._try_get_data

    def got(self: Any, *args: Any, **named: Any) -> Any:
        found = get_data(self, *args, **named)
        _, (_, data) = found
        # With the times of how it was made.
        crossed.add(
            type(data[0] if type(data) in (tuple, list) and len(data) == 2 else data).__name__
        )
        return found

    batches._try_get_data = got.__get__(batches)
    for batch in batches:
        x = torch.stack([sample[0] for sample in batch])
        y = torch.cat([sample[1] for sample in batch])
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return json.dumps({"losses": losses, "crossed": sorted(crossed)})
