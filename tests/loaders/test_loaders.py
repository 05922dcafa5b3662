"""Loaders: for every strategy the same batches in the same order, and nothing left when they are closed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_fixtures import CHEAP, SMALL, descendants, gone, small_home  # noqa: F401
from torch.utils.data import Dataset

from vitprof import data
from vitprof.errors import one_line
from vitprof.loaders import Loader, epoch_order, open_loader
from vitprof.loaders import dataloader as dataloader_module
from vitprof.loaders.dataloader import start_method
from vitprof.records import RunConfig
from vitprof.storage import Pixels, open_storage
from vitprof.strategies import STRATEGIES, resolve
from vitprof.transfer.normalise import ToInput

pytestmark = pytest.mark.usefixtures("small_home")
N = SMALL.n_train
WORKERS = {"strategy": "workers", "workers": 2, "persistent_workers": True}
FLEETING = WORKERS | {"persistent_workers": False}
VARIANTS = [{"strategy": name} for name in STRATEGIES] + [FLEETING, WORKERS | {"workers": 1, "prefetch_factor": 5}]


def variant_id(config: dict[str, Any]) -> str:
    return "-".join(str(value) for value in config.values())


def opened(*, train: bool = True, **config: Any) -> tuple[Loader, ToInput]:
    """The loader of a strategy over the small digits, and what makes the model's input of its images."""
    resolved = resolve(RunConfig(**(CHEAP | {"batch_size": 64} | config)))
    plan = STRATEGIES[resolved.strategy]
    storage = open_storage(plan.storage, SMALL, data.prepare("digits"), train=train)
    return open_loader(plan.loader, storage, resolved, train=train), ToInput(SMALL, storage.pixels, 28)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """The training set as the model gets it."""
    images, labels = data.read_split(data.prepare("digits"), True)
    return ToInput(SMALL, "uint8", 28)(torch.from_numpy(images).unsqueeze(1)), torch.from_numpy(labels)


def test_an_order_is_a_shuffle_of_all_samples() -> None:
    order = epoch_order(1000, 42, 0)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(1000))
    assert torch.equal(order, epoch_order(1000, 42, 0))
    for other in (epoch_order(1000, 42, 1), epoch_order(1000, 43, 0), torch.arange(1000)):
        assert not torch.equal(order, other)
    assert epoch_order(10, 2**32 - 1, 10**6).sort().values.tolist() == list(range(10))


@pytest.mark.parametrize("config", VARIANTS, ids=variant_id)
def test_each_epoch_has_each_sample_once_in_the_shared_order(config: dict[str, Any]) -> None:
    """And the same pixels, to the last bit."""
    images, labels = samples()
    loader, to_input = opened(**config)
    try:
        for epoch in (0, 1):
            batches = list(loader.epoch(epoch))
            order = epoch_order(N, 42, epoch)
            assert [len(b[1]) for b in batches] == [64] * 9 + [24]
            assert len(loader) == len(batches)
            assert torch.equal(torch.cat([b[1] for b in batches]), labels[order])
            assert torch.equal(torch.cat([to_input(b[0]) for b in batches]), images[order])
    finally:
        loader.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_test_set_comes_as_it_is_stored(strategy: str) -> None:
    loader, _ = opened(strategy=strategy, train=False)
    try:
        for _ in range(2):
            labels = torch.cat([batch[1] for batch in loader.epoch(0)])
            assert labels.tolist() == data.read_split(data.prepare("digits"), False)[1].tolist()
    finally:
        loader.close()


@pytest.mark.parametrize("config", [WORKERS, FLEETING], ids=variant_id)
class TestWorkers:
    """Real processes."""

    @pytest.fixture
    def loader(self, config: dict[str, Any]) -> Iterator[Loader]:
        loader, _ = opened(**config)
        yield loader
        loader.close()

    def test_are_gone_after_close(self, loader: Loader, config: dict[str, Any]) -> None:
        list(loader.epoch(0))
        assert len(descendants()) == (2 if config["persistent_workers"] else 0)
        batches = loader.epoch(1)
        next(batches)
        workers = descendants()
        assert len(workers) == 2
        loader.close()  # in mid-epoch, with batches on their way
        assert gone(workers)
        loader.close()

    def test_an_epoch_broken_off_does_not_disturb_the_next(self, loader: Loader, config: dict[str, Any]) -> None:
        for _ in itertools.islice(loader.epoch(0), 2):
            pass
        labels = torch.cat([batch[1] for batch in loader.epoch(1)])
        assert torch.equal(labels, samples()[1][epoch_order(N, 42, 1)])
        assert len(descendants()) <= 2


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
    loader, _ = opened(strategy="per-sample")
    worker = multiprocessing.get_context("fork").Process(target=signal.pause)
    worker.start()
    loader._loader = CutOff([worker])  # type: ignore[attr-defined, assignment]
    with pytest.raises(ConnectionResetError):  # alive: it was something else
        next(loader.epoch(0))
    worker.kill()
    worker.join()
    with pytest.raises(RuntimeError, match=rf"^DataLoader worker \(pid {worker.pid}\) was ended by SIGKILL$"):
        next(loader.epoch(0))


class Broken(Dataset[Any]):
    """A data set that cannot give one of its samples."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 57:
            raise self.error
        return torch.zeros(1, 28, 28), 0


class BrokenStorage:
    pixels: Pixels = "normalised"
    device = torch.device("cpu")

    def __init__(self, error: Exception) -> None:
        self.broken = Broken(error)

    def __len__(self) -> int:
        return 100

    def dataset(self) -> Broken:
        return self.broken


class OwnError(Exception):
    """One that cannot be made from a message alone."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}: no such breed")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("sample 57 is upside down"), "ValueError: sample 57 is upside down"),
        (OwnError("dogs.csv", 3), "dogs.csv:3: no such breed"),
        (KeyError("beagle"), "KeyError: 'beagle'"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_reaches_the_caller_with_its_own_message(workers: int, error: Exception, expected: str) -> None:
    config = resolve(RunConfig(strategy="workers", workers=workers, batch_size=10))
    loader = open_loader("dataloader", BrokenStorage(error), config, train=True)  # type: ignore[arg-type]
    try:
        with pytest.raises(Exception) as caught:
            list(loader.epoch(0))
        assert one_line(caught.value).endswith(expected)
        assert "\n" not in one_line(caught.value)
    finally:
        loader.close()
    assert gone(descendants())


def test_how_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader_module.sys, "platform", "linux")
    assert (start_method("process"), start_method("thread")) == ("fork", "forkserver")
    monkeypatch.setattr(dataloader_module.sys, "platform", "darwin")
    assert (start_method("process"), start_method("thread")) == (None, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system starts every process by spawn")
def test_workers_of_a_job_in_a_thread_come_from_a_fork_server() -> None:
    loader, _ = opened(**WORKERS, isolation="thread")
    try:
        labels = torch.cat([batch[1] for batch in loader.epoch(0)])
        assert torch.equal(labels, samples()[1][epoch_order(N, 42, 0)])
        workers = descendants()
    finally:
        loader.close()
        gone(workers)
        # Python keeps both to its end; the next test is to find no process.
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("device", "pins"), [("cpu", False), ("cuda:0", True), ("auto", True)])
def test_memory_is_pinned_for_a_gpu_only(device: str, pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU of a machine with a GPU pinning would start CUDA for nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader, _ = opened(**WORKERS, device=device)
    assert loader._loader.pin_memory is pins  # type: ignore[attr-defined]
    loader.close()
