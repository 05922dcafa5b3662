"""PyTorch's DataLoader: how workers start and end, and what of their errors reaches the caller."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset

from tests.engine.loaders.loader_helpers import (
    IN_LOOP,
    WORKERS,
    as_input,
    collected,
    config_of,
    digits,
    labels_of,
    opened,
    variant_id,
)
from tests.engine_fixtures import SMALL, descendants, gone, wait_until
from tests.forking import exit_status_of, fork_doing
from vitprof.config import RunConfig
from vitprof.engine.loaders import dataloader as dataloader_module
from vitprof.engine.loaders.contract import Loader, Schedule, epoch_order
from vitprof.engine.loaders.dataloader import (
    end_with_the_job,
    open_samples,
    over_samples,
    start_method,
)
from vitprof.errors import DataError, SampleError, one_line

pytestmark = pytest.mark.usefixtures("shared_home")
N = SMALL.n_train
FLEETING = WORKERS | {"persistent_workers": False}


@pytest.mark.parametrize("variant", [WORKERS, FLEETING], ids=variant_id)
def test_workers_live_as_long_as_they_should_and_are_never_more_than_asked_for(
    variant: dict[str, Any],
) -> None:
    with opened(config_of(**variant)) as loader:
        late = loader.epoch(0)
        next(late)
        next(loader.epoch(1))
        assert len(descendants()) <= 2
        assert len(list(loader.epoch(2))) == len(loader)
        late.close()
        assert len(descendants()) == (2 if variant.get("persistent_workers", True) else 0)
        batches = loader.epoch(3)
        next(batches)
        workers = descendants()
        assert len(workers) == 2
        loader.close()  # in mid-epoch, with batches on their way
        assert gone(workers)
        loader.close()


@pytest.mark.measured
@pytest.mark.skipif(sys.platform != "linux", reason="Python's choices on Linux")
def test_workers_that_are_sent_all_they_need() -> None:
    """Spawned ones are sent the same; tests of storages have such workers."""
    config = config_of(loader="dataloader", workers=1, start_method="forkserver", storage="idx")
    with opened(config) as loader:
        for epoch in (0, 1):
            batches = collected(loader.epoch(epoch))
            order = epoch_order(N, 42, epoch)
            assert torch.equal(labels_of(batches), digits()[1][order])
            assert torch.equal(as_input(batches, "normalised"), digits()[0][order])


def test_how_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    in_process, in_thread = RunConfig(isolation="process"), RunConfig(isolation="thread")
    monkeypatch.setattr(dataloader_module.sys, "platform", "linux")
    assert (start_method(in_process), start_method(in_thread)) == ("fork", "forkserver")
    assert start_method(RunConfig(isolation="thread", start_method="spawn")) == "spawn"
    monkeypatch.setattr(dataloader_module.sys, "platform", "darwin")
    assert (start_method(in_process), start_method(in_thread)) == (None, None)


class CutOff:
    """An iterator of batches whose connection to a worker breaks."""

    def __init__(self, workers: list[Any]) -> None:
        self._workers = workers

    def __iter__(self) -> CutOff:
        return self

    def __next__(self) -> Any:
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_dead_worker_is_named_where_pytorch_names_a_connection() -> None:
    """As a real one that is killed while it hands over a batch; then PyTorch's signal handler may say it as well."""
    with opened(config_of(**IN_LOOP)) as loader:
        real = loader._loader  # type: ignore[attr-defined]
        worker = multiprocessing.get_context("fork").Process(target=signal.pause)
        worker.start()
        loader._loader = CutOff([worker])  # type: ignore[attr-defined]
        with pytest.raises(ConnectionResetError):  # alive: it was something else
            next(loader.epoch(0))
        worker.kill()
        worker.join()
        with pytest.raises(
            RuntimeError, match=rf"^DataLoader worker \(pid {worker.pid}\) was ended by SIGKILL$"
        ):
            next(loader.epoch(0))
        loader._loader = real  # type: ignore[attr-defined]


class Broken(Dataset[Any]):
    """A data set that cannot give some of its samples: without an error they kill the worker that asks for them."""

    def __init__(self, error: Exception | None, bad: tuple[int, ...] = (57,)) -> None:
        self.error, self.bad = error, bad

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.bad and self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.bad:
            raise self.error  # type: ignore[misc]
        return torch.zeros(1, 28, 28), index


# PyTorch's handler of SIGCHLD raises its error wherever the program is, also where Python can only print it.
@pytest.mark.filterwarnings(
    "ignore:(?s).*DataLoader worker .* is killed:pytest.PytestUnraisableExceptionWarning"
)
def test_a_worker_that_is_killed_is_no_hang() -> None:
    with contextlib.closing(over(Broken(None), workers=2)) as loader:
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as caught:
            list(loader.epoch(0))
        assert "\n" not in one_line(caught.value)


NOT_BY_A_MESSAGE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no such breed")
"""An error that cannot be made from a message alone."""


def over(samples: Dataset[Any], **config: Any) -> Loader:
    resolved = config_of(**({"loader": "dataloader", "storage": "idx", "batch_size": 10} | config))
    storage = type("Given", (), {"dataset": lambda self, stopwatch=None: samples})()
    return over_samples(
        Schedule(samples, resolved, train=True),
        *open_samples(storage, resolved, train=True),
        resolved,
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NOT_BY_A_MESSAGE, "position 0: no such breed"),
        (KeyError("beagle"), "KeyError: 'beagle'"),
        (RuntimeError(), "RuntimeError"),
        (SampleError("/data/57.jpg is empty; delete it"), "/data/57.jpg is empty; delete it"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_reaches_the_caller_with_its_own_message(
    error: Exception, expected: str
) -> None:
    with (
        contextlib.closing(over(Broken(error), workers=1)) as loader,
        pytest.raises(Exception) as caught,
    ):
        list(loader.epoch(0))
    assert one_line(caught.value).endswith(expected)
    assert "\n" not in one_line(caught.value)
    assert isinstance(caught.value, SampleError) == isinstance(error, SampleError)
    assert gone(descendants())


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_cannot_be_read_are_skipped_and_named(workers: int) -> None:
    bad = tuple(epoch_order(100, 42, 0)[[3, 20, 21, 22, 23]].tolist())
    damaged = Broken(SampleError("/data/x.jpg is empty"), bad)
    with contextlib.closing(
        over(damaged, workers=workers, skip_unreadable=True, batch_size=4)
    ) as loader:
        batches = collected(loader.epoch(0))
    assert [len(batch.labels) for batch in batches] == [3, 4, 4, 4, 4, 0] + [4] * 19
    assert [len(batch.unreadable) for batch in batches] == [1, 0, 0, 0, 0, 4] + [0] * 19
    assert batches[5].unreadable == ("/data/x.jpg is empty",) * 4
    assert len(batches[5].images) == 0
    assert labels_of(batches).tolist() == [
        i for i in epoch_order(100, 42, 0).tolist() if i not in bad
    ]
    other = over(
        Broken(ValueError("a defect")), workers=0, skip_unreadable=True
    )  # of another kind: not skipped
    with contextlib.closing(other), pytest.raises(ValueError, match="a defect"):
        list(other.epoch(0))


def test_the_settings_reach_pytorch_and_memory_is_pinned_for_a_gpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU of a machine with a GPU pinning would start CUDA for nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device, pins in (("cpu", False), ("cuda:0", True), ("auto", True)):
        with opened(
            config_of(**FLEETING, device=device, prefetch_factor=5, start_method="spawn")
        ) as loader:
            real = loader._loader  # type: ignore[attr-defined]
        assert (real.num_workers, real.prefetch_factor, real.persistent_workers) == (2, 5, False)
        assert real.multiprocessing_context.get_start_method() == "spawn"
        assert real.pin_memory is pins


def test_batches_that_do_not_fit_into_shared_memory_are_refused() -> None:
    """A worker that runs out of it dies by a bus error, which says nothing."""
    config = RunConfig(strategy="workers", workers=4, prefetch_factor=100, batch_size=60_000)
    with pytest.raises(
        DataError, match=r"/dev/shm has .* MB free; 4 workers with 100 batches of 60000 each need "
    ):
        dataloader_module.ensure_shared_memory(config, 10**9)
    dataloader_module.ensure_shared_memory(config, 0)
    dataloader_module.ensure_shared_memory(dataclasses.replace(config, workers=0), 10**9)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl of Linux")
def test_a_stopped_worker_ends_with_its_job() -> None:
    """One that is stopped looks for its owner no more; the system does."""
    told, tell = os.pipe()

    def stop() -> None:
        end_with_the_job(0)
        os.kill(os.getpid(), signal.SIGSTOP)

    def start_worker_and_wait() -> None:
        os.write(tell, f"{fork_doing(stop)}\n".encode())
        while True:
            # It returns when a signal was handled: where DataLoaders were used, as the worker stops.
            signal.pause()

    job = fork_doing(start_worker_and_wait)
    try:
        worker = psutil.Process(int(os.read(told, 20)))
        wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, "a stopped worker")
    finally:
        os.kill(job, signal.SIGKILL)
        exit_status_of(job)
        os.close(told)
        os.close(tell)
    assert gone([worker])
    options = [
        dataloader_module._options(config_of(**WORKERS, isolation=kind))
        for kind in ("process", "thread")
    ]
    assert [o.get("worker_init_fn") for o in options] == [end_with_the_job, None]
