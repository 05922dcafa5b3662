"""PyTorch's DataLoader: over a Dataset sample by sample, as tutorials write it, or over whole
batches of a storage.

The Dataset's own code is unchanged, since tutorials show it in that form. Each batch is timed
around it, and the storage times stages inside it (`open_samples`).
"""

import math
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from multiprocessing import connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from vitprof import parents
from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import Maker, with_look
from vitprof.engine.loaders.contract import Batch, Schedule
from vitprof.engine.transforms import as_it_is
from vitprof.errors import DataError, SampleError
from vitprof.measure.stage_look import REST, LookSchedule, StageLook, begin_look
from vitprof.measure.step_columns import BatchTimes, n_ready
from vitprof.measure.stopwatch import Stopwatch, Wait, requested_wait


class Skipping(Dataset[Any]):
    """A Dataset that returns the error message in place of a sample that cannot be read."""

    def __init__(self, samples: Dataset[Any]) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> Any:
        try:
            return self._samples[index]
        except SampleError as error:
            return str(error)


def collate_skipping(samples: list[Any]) -> Batch:
    """Returns a batch of the samples that could be read, with the messages of the others; it may be
    empty.
    """
    unreadable = tuple(sample for sample in samples if isinstance(sample, str))
    if len(unreadable) == len(samples):
        return Batch(torch.empty(0), torch.empty(0, dtype=torch.int64), unreadable)
    if unreadable:
        samples = [sample for sample in samples if not isinstance(sample, str)]
    images, labels = default_collate(samples)
    return Batch(images, labels, unreadable)


class TimedSamples(Dataset[Any]):
    """A Dataset that makes all samples of a batch in one call, so that it can time them, and look at
    what some batches use of the cores, if `looks`.
    """

    def __init__(self, samples: Dataset[Any], stopwatch: Stopwatch, *, looks: bool) -> None:
        self._samples = samples
        self._stopwatch = stopwatch
        self._looks = LookSchedule(is_on=looks)

    def __getitems__(self, indices: list[int]) -> tuple[list[Any], BatchTimes, StageLook | None]:
        begun = perf_counter()
        stopwatch = self._stopwatch
        stopwatch.restart()
        has_stages = bool(stopwatch.noted or stopwatch.rest)
        look = self._next_look(len(indices)) if has_stages else None
        stopwatch.look = look
        stopwatch.wait_for_rest()
        if look is None:
            samples = fetch(self._samples, indices)
        else:
            samples = looked_fetch(self._samples, indices, look)
        stopwatch.end_rest(begun)
        stopwatch.look = None
        spent_s = (math.nan, math.nan, math.nan)
        if has_stages:
            spent_s = stopwatch.read_s, stopwatch.decode_s, stopwatch.transform_s
        self._looks.took_s = perf_counter() - begun
        return samples, BatchTimes(*spent_s, math.nan, begun, math.nan), look

    def _next_look(self, n: int) -> StageLook | None:
        """Returns a look at the batch of `n` samples that begins; None for most."""
        counts_for = self._looks.next_counts_for()
        if not counts_for:
            return None
        samples = 1 if at_once(self._samples) else n
        return begin_look(counts_for, samples, rest=self._stopwatch.rest or REST)


def looked_fetch(samples: Any, indices: list[int], look: StageLook) -> Any:
    """Returns what `fetch` returns, and follows the samples with `look`, which it ends if it fails."""
    with ExitStack() as if_it_fails:
        if_it_fails.callback(look.close)
        if at_once(samples):
            look.begin_sample()
            made = fetch(samples, indices)
        else:
            made = []
            for index in indices:
                look.begin_sample()
                made.append(samples[index])
        if_it_fails.pop_all()
    return made


class TimedCollate:
    """A collate function for what `TimedSamples` returns: calls another one and times it, if
    `timed`.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], wait: Wait | None, *, timed: bool
    ) -> None:
        self._collate = collate
        self._wait = wait
        self._timed = timed

    def __call__(self, fetched: tuple[list[Any], BatchTimes, StageLook | None]) -> Batch:
        samples, made, look = fetched
        if look is None:
            return self._collated(samples, made)
        with closing(look):
            look.collate()
            batch = self._collated(samples, made)
        return with_look(batch, look)

    def _collated(self, samples: list[Any], made: BatchTimes) -> Batch:
        begun = perf_counter()
        if self._wait is not None:
            self._wait.into("collate")
        batch = Batch(*self._collate(samples))
        if not self._timed:
            return batch
        end = perf_counter()
        made = made._replace(collate_s=end - begun, end_s=end, worker=worker_number())
        return batch._replace(made=made)


def worker_number() -> float:
    """Returns the number of this DataLoader worker; NaN in a process that is not a worker."""
    worker = get_worker_info()
    return math.nan if worker is None else worker.id


def fetch(samples: Any, indices: list[int]) -> Any:
    """Returns the samples at `indices` as a DataLoader fetches them: with `__getitems__` if the
    Dataset has it.
    """
    if at_once(samples):
        return samples.__getitems__(indices)
    return [samples[index] for index in indices]


def at_once(samples: Any) -> bool:
    """Returns whether a Dataset makes all samples of a batch in one call."""
    return getattr(samples, "__getitems__", None) is not None


Collate = Callable[[Any], Any]
"""Samples -> a batch: a `Batch`, or images and labels."""


def open_samples(storage: Any, config: RunConfig, *, train: bool) -> tuple[Dataset[Any], Collate]:
    """Returns a storage's Dataset and its collate function: PyTorch's own if nothing is timed,
    delayed or skipped.

    The storage's `dataset` gives pairs of image (channels, height, width) and label. Its samples
    note on the stopwatch how long the stages in `Stopwatch.noted` took, and `Stopwatch.rest` is the
    stage of the rest of the time.
    """
    wait = requested_wait(config, train=train)
    timed = config.loader_times or wait is not None
    stopwatch = Stopwatch(wait)
    samples: Dataset[Any] = storage.dataset(stopwatch) if timed else storage.dataset()
    collate: Collate = default_collate
    if config.skip_unreadable:
        samples = Skipping(samples)
        collate = collate_skipping
    if timed:
        looks = train and config.loader_times
        samples = TimedSamples(samples, stopwatch, looks=looks)
        collate = TimedCollate(collate, wait, timed=config.loader_times)
    return samples, collate


SHARED_MEMORY = Path("/dev/shm")
"""Where workers hand over batches on Linux."""
FORK_SERVER_IMPORTS = ["vitprof.engine.worker_imports"]
"""The module that a fork server imports once, so that its workers need not import what it has."""


Ticket = tuple[int, NDArray[np.int64]]
"""Epoch and indices (b,) of a batch.

NumPy, because each tensor sent to a worker takes its own shared memory."""


class Order(Sampler[Any]):
    """The order of the current epoch: indices, or whole batches as a `Ticket` each.

    Indices are made as in PyTorch's RandomSampler: one randperm, one list.
    """

    def __init__(self, schedule: Schedule, *, whole: bool) -> None:
        self._schedule = schedule
        self._whole = whole
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._schedule) if self._whole else self._schedule.n

    def __iter__(self) -> Iterator[Ticket | int]:
        batches = self._schedule.batches(self.epoch)
        if self._whole:
            yield from ((self.epoch, indices.numpy()) for indices in batches)
        else:
            yield from torch.cat(batches).tolist()


class TimedBatches(Dataset[Batch]):
    """A maker wrapped as a Dataset that returns whole batches."""

    def __init__(self, make: Maker) -> None:
        self._make = make

    def __getitems__(self, ticket: Ticket) -> Batch:
        epoch, indices = ticket
        batch = self._make(epoch, torch.from_numpy(indices))
        if batch.made is None:
            return batch
        return batch._replace(made=batch.made._replace(worker=worker_number()))


def end_with_the_job(_worker: int) -> None:
    """Makes Linux kill this worker as soon as the job's training thread ends, even while the worker
    is stopped.

    By itself a worker checks for its owner only every 5 s, and never while stopped (SIGSTOP).
    """
    parents.signal_when_the_parent_ends(signal.SIGKILL)


def start_method(config: RunConfig) -> str | None:
    """Returns the start method of worker processes; None means Python's default.

    A job in its own process forks: that takes 0.03 of spawn's time to the first batch, with no
    deadlock in 10 of 10 runs. The dashboard's process, with its many threads, deadlocked in 5 of 16
    runs when it forked, so a job in one of its threads uses a fork server.
    """
    if config.start_method is not None:
        return config.start_method
    if sys.platform != "linux":
        return None
    return "fork" if config.isolation == "process" else "forkserver"


class DataLoaderLoader:
    """A loader around a DataLoader, whose epochs follow the order that all strategies share."""

    def __init__(
        self, samples: Dataset[Any], config: RunConfig, order: Order, **options: Any
    ) -> None:
        self._loader: DataLoader[Any] = DataLoader(samples, **_options(config), **options)
        self._times = config.loader_times and self._loader.num_workers > 0
        self._order = order
        self._batches: Iterator[Any] | None = None
        self._persistent = self._loader.persistent_workers

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._end_fleeting(self._batches)
        self._order.epoch = epoch
        batches = self._batches = iter(self._loader)
        try:
            queue_depth = 0.0 if self._times else math.nan
            for parts in batches:
                batch = Batch(*parts)
                if batch.made is not None:
                    batch = batch._replace(made=batch.made._replace(queue_depth=queue_depth))
                yield batch
                if self._times:
                    queue_depth = n_ready(batches)
        except (OSError, EOFError) as error:
            self._blame_worker(error, batches)
            raise
        finally:
            self._end_fleeting(batches)

    def _end_fleeting(self, batches: Iterator[Any] | None) -> None:
        """Ends the workers of an epoch that is over or was broken off, unless they are to live on."""
        if not self._persistent:
            _end_workers(batches)

    @staticmethod
    def _blame_worker(error: Exception, batches: Iterator[Any]) -> None:
        """Raises a `RuntimeError` that names the worker that died, where PyTorch only reports a
        lost connection.
        """
        workers = getattr(batches, "_workers", [])
        ended = connection.wait([worker.sentinel for worker in workers], timeout=1.0)
        for worker in workers:
            if worker.sentinel in ended:
                # Its files are closed a moment before its exit status is available.
                worker.join(1.0)
            if worker.exitcode:
                status = worker.exitcode
                how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
                raise RuntimeError(
                    f"DataLoader worker (pid {worker.pid}) was ended by {how}"
                ) from error

    def close(self) -> None:
        _end_workers(self._batches)
        # PyTorch keeps an iterator of persistent workers.
        _end_workers(self._loader._iterator)
        self._batches = self._loader._iterator = None


def _end_workers(batches: Iterator[Any] | None) -> None:
    """Ends the worker processes of a DataLoader's iterator, if it has any.

    PyTorch has no public way to do this (pytorch issue 57273). Dropping the iterator would do it,
    too, but only when it is garbage-collected, and processes would stay until then.
    """
    getattr(batches, "_shutdown_workers", lambda: None)()


def ensure_shared_memory(config: RunConfig, sample_bytes: int) -> None:
    """Raises `DataError` if the batches that workers keep ready do not fit into /dev/shm: workers
    would get SIGBUS.
    """
    if not config.workers or not SHARED_MEMORY.is_dir():
        return
    needed = config.workers * (config.prefetch_factor or 1) * config.batch_size * sample_bytes
    free = shutil.disk_usage(SHARED_MEMORY).free
    if needed > free:
        raise DataError(
            f"{SHARED_MEMORY} has {free / 1e6:,.0f} MB free; {config.workers} workers with {config.prefetch_factor} "
            f"batches of {config.batch_size} each need {needed / 1e6:,.0f} MB: use fewer workers, a smaller prefetch "
            "factor or batch, or enlarge it (docker run --shm-size)"
        )


def over_samples(
    schedule: Schedule, samples: Dataset[Any], collate: Collate, config: RunConfig
) -> DataLoaderLoader:
    """Returns a DataLoader over a Dataset of samples, with PyTorch's own batching."""
    order = Order(schedule, whole=False)
    return DataLoaderLoader(
        samples, config, order, batch_size=schedule.batch_size, sampler=order, collate_fn=collate
    )


def over_batches(schedule: Schedule, make: Maker, config: RunConfig) -> DataLoaderLoader:
    """Returns a DataLoader over whole batches: one call of `make` for each, in the loop or in a
    worker.
    """
    order = Order(schedule, whole=True)
    return DataLoaderLoader(
        TimedBatches(make), config, order, batch_sampler=order, collate_fn=as_it_is
    )


def _options(config: RunConfig) -> dict[str, Any]:
    # Pinning starts CUDA, which a run on the CPU of a machine with a GPU must not.
    pins = (
        config.pin_memory
        and config.device != "cpu"
        and not config.simulated
        and torch.cuda.is_available()
    )
    workers = config.workers or 0
    generator = torch.Generator().manual_seed(config.seed)
    options: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": bool(pins),
        "generator": generator,
    }
    if workers:
        method = start_method(config)
        options |= {
            "prefetch_factor": config.prefetch_factor,
            "multiprocessing_context": method,
            "persistent_workers": bool(config.persistent_workers),
        }
        # In a thread of the dashboard's, the thread that starts them may end before they do.
        if config.isolation == "process":
            options["worker_init_fn"] = end_with_the_job
        if method == "forkserver":
            torch.multiprocessing.get_context(method).set_forkserver_preload(FORK_SERVER_IMPORTS)
    return options
