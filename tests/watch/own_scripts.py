"""More training scripts as people write them: how they make their loaders. Each returns what became of these."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from tests.watch.scripts import fit


def numbers(n: int = 8) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)).view(n, 1))


def arguments(loader: DataLoader[Any]) -> list[Any]:
    return [
        loader.num_workers,
        loader.prefetch_factor,
        loader.pin_memory,
        loader.persistent_workers,
        loader.batch_size,
    ]


def in_one_line() -> list[Any]:
    """Both loaders are made by the same call, of sets that look alike; the second one trains."""
    loaders = {name: DataLoader(numbers(), batch_size=2) for name in ("val", "train")}
    fit(loaders["train"], inputs=1)
    with torch.no_grad():
        list(loaders["val"])
    return [arguments(loaders["train"]), arguments(loaders["val"])]


def by_a_package() -> list[Any]:
    """As timm's create_loader makes it."""
    code = compile("made = DataLoader(data, batch_size=2)", "/site-packages/timm/loader.py", "exec")
    names: dict[str, Any] = {
        "__name__": "timm.data.loader",
        "DataLoader": DataLoader,
        "data": numbers(),
    }
    exec(code, names)
    fit(names["made"], inputs=1)
    return arguments(names["made"])


def lazily_in_one_line() -> list[Any]:
    """One line makes the loader that trains, and when that is done, the one that checks."""
    made = []
    for n in (8, 4):
        loader = DataLoader(numbers(n), batch_size=2)
        made.append(arguments(loader))
        if n == 8:
            fit(loader, inputs=1)
    return made


def each_epoch() -> list[Any]:
    """A loader of its own for each epoch, and one that checks on another line."""
    made = []
    for _ in range(2):
        loader = DataLoader(numbers(), 2, False)
        fit(loader, inputs=1)
        made.append(arguments(loader))
    return [*made, arguments(DataLoader(numbers(), 2, False))]


class Own(DataLoader[Any]):
    """A loader of a person's own, with arguments of its own."""

    def __init__(self, n: int, **options: Any) -> None:
        super().__init__(numbers(n), batch_size=2, **options)


def of_a_class() -> list[Any]:
    loader = Own(8, num_workers=1, prefetch_factor=3, persistent_workers=True, timeout=5)
    fit(loader, inputs=1)
    return arguments(loader)


class Late(Dataset[tuple[Tensor]]):
    """Its first sample is there once the last one has been read."""

    def __init__(self) -> None:
        self._has_last = multiprocessing.Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor]:
        if index == 0:
            self._has_last.wait()
        if index == 3:
            self._has_last.set()
        return (torch.full((1,), float(index)),)


def as_they_came() -> list[float]:
    """The samples of two workers, of which one waits for the other."""
    came = []

    def batches() -> Iterator[tuple[Tensor]]:
        for (x,) in DataLoader(Late(), num_workers=2):
            came.append(x.item())
            yield (x,)

    fit(batches(), inputs=1)
    return came


class FromWorker(Dataset[tuple[Tensor, str, int]]):
    """Random samples, with what the worker that makes them says of itself."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, str, int]:
        return torch.rand(1), get_sharing_strategy(), torch.get_num_threads()


def in_workers() -> list[Any]:
    """By what its worker shares tensors, its threads, and the losses."""
    torch.manual_seed(1)
    said = []

    def batches() -> Iterator[tuple[Tensor]]:
        for x, strategies, threads in DataLoader(FromWorker(), batch_size=2, num_workers=1):
            said.append([strategies[0], int(threads[0])])
            yield (x,)

    losses = fit(batches(), inputs=1)
    return [*said[0], losses]


def own_batches() -> list[Any]:
    loader = DataLoader(
        numbers(), batch_sampler=BatchSampler(SequentialSampler(range(8)), 2, False)
    )
    fit(loader, inputs=1)
    return arguments(loader)


class Random(Dataset[tuple[Tensor]]):
    """Samples that are other ones each time, and how often they were read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor]:
        self.reads += 1
        return (torch.rand(1) + index,)


def kept() -> list[Any]:
    """Two epochs over random samples: how often they were read, and whether the second epoch was like the first."""
    dataset = Random()
    loader = DataLoader(dataset, batch_size=2)
    torch.manual_seed(1)
    epochs = []
    fit(loader, inputs=1)
    for _ in range(2):
        epochs.append([x.item() for (batch,) in loader for x in batch])
    return [
        dataset.reads,
        epochs[0] == epochs[1],
        isinstance(loader.dataset, Random),
        loader.dataset.reads,
    ]
