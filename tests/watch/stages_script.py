"""A training script whose stages sleep for known times, any of which can be made shorter.

    python -m tests.watch.stages_script WORKERS STEPS [STAGE FRACTION]

It prints its own mean time of a step, after the first tenth of them, and a number that its losses and batches make.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

COSTS = {"read": 0.012, "transform": 0.008, "collate": 0.003, "compute": 0.01}
"""Seconds of a batch."""
BATCH = 4


class Transform:
    """A transform that takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return value * 2


class Stages(Dataset[Any]):
    """As many samples as steps need, with a Compose."""

    def __init__(self, n_samples: int, costs: Mapping[str, float]) -> None:
        from torchvision.transforms import Compose

        self.n_samples = n_samples
        self.read_s = costs["read"] / BATCH
        self.transform = Compose([Transform(costs["transform"] / BATCH)])

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_s)
        return self.transform(torch.rand(4) + index % 5), index % 3


class Collate:
    """A collate function that takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, samples: Sequence[Any]) -> Any:
        time.sleep(self.seconds)
        return torch.utils.data.default_collate(list(samples))


def train(
    workers: int,
    steps: int,
    faster: Mapping[str, float] | None = None,
    *,
    start_method: str | None = None,
    epochs: int = 1,
) -> str:
    """Trains for so many steps. `faster`: the fraction by which a stage is faster."""
    costs = {stage: s * (1 - (faster or {}).get(stage, 0.0)) for stage, s in COSTS.items()}
    torch.manual_seed(1)
    loader: DataLoader[Any] = DataLoader(
        Stages(steps // epochs * BATCH, costs),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        collate_fn=Collate(costs["collate"]),
        multiprocessing_context=start_method if workers else None,
    )
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    ends = []
    told = 0.0
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(costs["compute"])
            told += loss.item() + float(x.sum())
            ends.append(time.perf_counter())
    first = len(ends) // 10
    return f"{(ends[-1] - ends[first]) / (len(ends) - 1 - first):.6f} {told!r}"


def main() -> None:
    workers, steps, *rest = sys.argv[1:]
    faster = {rest[0]: float(rest[1])} if rest else None
    sys.stdout.write(f"{train(int(workers), int(steps), faster)}\n")


if __name__ == "__main__":
    main()
