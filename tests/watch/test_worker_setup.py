"""What a trial sets in workers: after the script's own `worker_init_fn`, and without a random number."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as dataloader_module

from vitprof.watch import worker_setup
from vitprof.watch.worker_setup import InWorkers, WorkerSetup, in_workers

SEEN: list[str] = []


class Drawn(Dataset[tuple[Tensor, list[str]]]):
    """Random samples, with what has been called in their worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, list[str]]:
        return torch.rand(3), list(SEEN)


def own_init(worker: int) -> None:
    SEEN.append(f"own of {worker}")


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def a_loader() -> DataLoader[Any]:
    return DataLoader(
        Drawn(),
        batch_size=2,
        num_workers=1,
        collate_fn=as_list,
        worker_init_fn=own_init,
        generator=torch.Generator().manual_seed(3),
    )


class Noting(InWorkers):
    def set(self) -> None:
        SEEN.append("set")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The loaders whose workers are set up."""
    found: list[Any] = []
    kind = dataloader_module._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "__init__", kind.__init__)
    worker_setup.set_up_workers(
        dataloader_module, lambda loader: Noting() if loader in found else None
    )
    return found


def test_after_the_scripts_own_and_without_a_random_number(changed: list[Any]) -> None:
    plain = list(a_loader())
    loader = a_loader()
    changed.append(loader)
    found = list(loader)
    assert loader.worker_init_fn is own_init
    for batch, of_plain in zip(found, plain, strict=True):
        for (x, seen), (as_ever, seen_before) in zip(batch, of_plain, strict=True):
            assert torch.equal(x, as_ever)
            assert (seen, seen_before) == (["own of 0", "set"], ["own of 0"])


def test_workers_that_are_not_forked_get_it() -> None:
    made = WorkerSetup(own_init, InWorkers("file_system", 2))
    assert pickle.loads(pickle.dumps(made)) == made


def test_opencv_gets_the_same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[int] = []
    cv2 = SimpleNamespace(getNumThreads=lambda: 8, setNumThreads=set_to.append)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    before = torch.get_num_threads()
    worker_setup.set_threads(2)
    found = torch.get_num_threads()
    torch.set_num_threads(before)
    assert (found, set_to) == (2, [2])


def test_threads_of_opencv_that_a_fork_has_left_behind_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenCV waits for ever to end them: so did the trial."""
    has_ended = threading.Event()
    cv2 = SimpleNamespace(getNumThreads=lambda: -1, setNumThreads=lambda _: has_ended.wait())
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setattr(worker_setup, "LIMIT_S", 0.01)
    with pytest.raises(RuntimeError, match="used them before its workers were forked"):
        worker_setup.set_threads(torch.get_num_threads())
    has_ended.set()


def test_what_workers_are_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    assert worker_setup.facts_of(a_loader())["worker_threads"] is None
    plain = DataLoader(Drawn(), num_workers=1)
    assert worker_setup.facts_of(plain)["worker_threads"] == 1
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace())
    assert worker_setup.facts_of(plain)["worker_threads"] is None
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        loader = DataLoader(Drawn(), num_workers=1, multiprocessing_context=context)
        assert worker_setup.facts_of(loader)["forks"] == (method == "fork")


def test_a_strategy_that_this_system_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_workers({}) is None
    assert in_workers({"sharing_strategy": None}) is None
    assert in_workers({"sharing_strategy": "file_system"}) == InWorkers("file_system")
    monkeypatch.setattr(torch.multiprocessing, "_all_sharing_strategies", {"file_system"})
    with pytest.raises(ValueError, match="no sharing_strategy file_descriptor: it has file_system"):
        in_workers({"sharing_strategy": "file_descriptor"})
