"""PyTorch's DataLoader over a storage's samples, without or with worker processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from vitprof.loaders import epoch_order
from vitprof.records import RunConfig
from vitprof.storage import Batch, Storage


class EpochOrder(Sampler[int]):
    """Indices in the order of the current epoch. Written as PyTorch's RandomSampler is: one randperm, one list."""

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[int]:
        yield from epoch_order(self._n, self._seed, self.epoch).tolist()


def start_method(isolation: str) -> str | None:
    """How worker processes start; None is Python's own choice.

    A job's own process forks: 0.03 of spawn's time to the first batch, and no deadlock in 10 of 10 runs. The
    dashboard's process, full of threads, deadlocked in 5 of 16 when it forked, so a job in a thread of it asks a
    fork server (DESIGN.md sections 6 and 7).
    """
    if sys.platform != "linux":
        return None
    return "fork" if isolation == "process" else "forkserver"


class DataLoaderLoader:
    """A DataLoader whose epochs follow the order that all strategies share."""

    def __init__(self, loader: DataLoader[Any], order: EpochOrder | None) -> None:
        self._loader = loader
        self._order = order
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        if self._order is not None:
            self._order.epoch = epoch
        self._batches = iter(self._loader)
        try:
            yield from self._batches
        except (OSError, EOFError) as error:
            self._blame_worker(error)
            raise

    def _blame_worker(self, error: Exception) -> None:
        """Say that a worker died where PyTorch only says that a connection did."""
        workers = getattr(self._batches, "_workers", [])
        ended = connection.wait([worker.sentinel for worker in workers], timeout=1.0)
        for worker in workers:
            if worker.sentinel in ended:
                worker.join(1.0)  # its files are closed a moment before its status can be asked for
            if worker.exitcode:
                how = f"exit status {worker.exitcode}"
                if worker.exitcode < 0:
                    how = signal.Signals(-worker.exitcode).name
                raise RuntimeError(f"DataLoader worker (pid {worker.pid}) was ended by {how}") from error

    def close(self) -> None:
        # Dropping the iterators is what ends workers; PyTorch keeps one of its own when workers persist. A public
        # way to end them does not exist (pytorch issue 57273), and waiting for the garbage collector would leave
        # processes behind.
        for batches in (self._batches, self._loader._iterator):
            end = getattr(batches, "_shutdown_workers", None)
            if end is not None:
                end()
        self._batches = self._loader._iterator = None


def open_dataloader(storage: Storage, config: RunConfig, train: bool) -> DataLoaderLoader:
    """The DataLoader for `storage`, with the workers and options of `config`."""
    order = EpochOrder(len(storage), config.seed) if train else None
    workers = config.workers or 0
    options: dict[str, Any] = {}
    if workers:
        options = {
            "prefetch_factor": config.prefetch_factor,
            "persistent_workers": bool(config.persistent_workers),
            "multiprocessing_context": start_method(config.isolation),
        }
        if options["multiprocessing_context"] == "forkserver":
            torch.multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torchvision"])
    loader: DataLoader[Any] = DataLoader(
        storage.dataset(),
        batch_size=config.batch_size,
        sampler=order,
        num_workers=workers,
        # Pinning starts CUDA: not for a run that only uses the CPU of a machine with a GPU.
        pin_memory=bool(config.pin_memory) and config.device != "cpu" and torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(config.seed),
        **options,
    )
    return DataLoaderLoader(loader, order)
