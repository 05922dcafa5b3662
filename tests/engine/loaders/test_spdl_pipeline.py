"""SPDL's pipeline as a loader. What it has in common with all of them is in the tests of all."""

import threading
from typing import Any

import pytest
import torch

from tests.engine.loaders.loader_helpers import (
    as_images,
    collected,
    opened,
    other,
    photos_config,
    storage_of,
)
from tests.engine_fixtures import vitprof_threads

pytest.importorskip("spdl.pipeline")
pytestmark = pytest.mark.usefixtures("photos")


def spdl_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "spdl" in each.name]


def test_the_same_samples_as_the_decoding_threads_random_crops_too() -> None:
    config = photos_config(loader="spdl", workers=3, augment="cpu")
    storage = storage_of(config)
    with (
        opened(config, storage=storage) as loader,
        opened(other(config, loader="threads"), storage=storage) as threads,
    ):
        for epoch in (1, 0):  # in any order
            mine, theirs = (collected(each.epoch(epoch)) for each in (loader, threads))
            assert [len(batch.labels) for batch in mine] == [len(batch.labels) for batch in theirs]
            assert torch.equal(
                torch.cat([b.labels for b in mine]), torch.cat([b.labels for b in theirs])
            )
            assert (as_images(mine) == as_images(theirs)).all()
        assert spdl_threads() == []


def test_its_threads_make_as_many_batches_at_once_as_asked_and_leave_torch_alone() -> None:
    config, at_once, seen = photos_config(loader="spdl", workers=2), list[int](), set[int]()
    n_threads, under_way, lock = torch.get_num_threads(), set[int](), threading.Lock()
    started = threading.Barrier(2, timeout=60)

    with opened(config) as loader:
        make: Any = loader._make  # type: ignore[attr-defined]

        def counted(epoch: int, indices: torch.Tensor) -> Any:
            with lock:
                under_way.add(threading.get_ident())
                at_once.append(len(under_way))
            if len(at_once) <= 2:
                started.wait()  # two threads are there, or this breaks
            seen.add(torch.get_num_threads())
            batch = make(epoch, indices)
            with lock:
                under_way.discard(threading.get_ident())
            return batch

        loader._make = counted  # type: ignore[attr-defined]
        assert len(list(loader.epoch(0))) == len(loader) == 8
    assert (max(at_once), seen, torch.get_num_threads()) == (2, {1}, n_threads)


def test_closing_in_the_middle_of_an_epoch_ends_its_threads() -> None:
    with opened(photos_config(loader="spdl", workers=2, batch_size=4)) as loader:
        batches = loader.epoch(0)
        next(batches)
        assert spdl_threads()
        loader.close()
        assert spdl_threads() == vitprof_threads() == []
        assert list(batches) == []
        loader.close()
