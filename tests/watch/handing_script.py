"""A training script whose batches are lists of tensors, some of them views of one storage."""

import json
import os
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = 4, 20


class Views(Dataset[Any]):
    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        x = torch.full((4,), float(index))
        return [x, x[:2], torch.tensor([index % 3]), torch.empty(0)]


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def by_file_system(_worker: int) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.set_num_threads(2)


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def train(sharing: str) -> str:
    """Returns how many descriptors more were open as the script had kept all batches."""
    torch.manual_seed(1)
    loader = DataLoader(
        Views(),
        batch_size=BATCH,
        num_workers=1,
        collate_fn=as_list,
        worker_init_fn=by_file_system if sharing == "file_system" else None,
    )
    step = Step()
    kept = []
    before = n_open()
    for batch in loader:
        kept.append(batch)
        step(batch)
    return json.dumps({"open": n_open() - before, "batches": len(kept)})


class Step:
    """A step of a small model on a batch."""

    def __init__(self) -> None:
        self._model = torch.nn.Linear(4, 3)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def __call__(self, batch: list[Any]) -> None:
        x = torch.stack([sample[0] for sample in batch])
        y = torch.cat([sample[2] for sample in batch])
        loss = torch.nn.functional.cross_entropy(self._model(x), y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def train_for_a_while(epochs: int, body_s: float) -> None:
    """Trains with two workers that stay, and takes so long for each step."""
    loader = DataLoader(
        Views(), batch_size=BATCH, num_workers=2, collate_fn=as_list, persistent_workers=True
    )
    step = Step()
    for _ in range(epochs):
        for batch in loader:
            step(batch)
            time.sleep(body_s)


if __name__ == "__main__":
    train_for_a_while(10, 0.05)
