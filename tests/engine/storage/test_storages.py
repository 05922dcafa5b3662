"""What every storage promises: the same samples whichever way they are kept, in whichever process they are read."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import images_of, place, read_all
from tests.engine.storage.writer_helpers import Counting
from tests.engine_fixtures import SMALL
from vitprof.engine.data import datasets, mnist
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.torchvision_datasets import IdxStorage
from vitprof.errors import DataError, one_line

pytestmark = pytest.mark.usefixtures("shared_home")
PIXELS = ["memmap", "raw-files", "pt", "pt-single", "pt-whole", "memory", "hdf5", "hdf5-chunked", "lmdb"]
NO_FILES = ["memory", "memory-float", "idx"]


def opened(name: str, *, train: bool = True) -> Any:
    return open_storage(name, SMALL, place(name), train=train)


@pytest.mark.parametrize("name", PIXELS)
def test_images_in_whole_batches_and_into_a_buffer(name: str) -> None:
    storage = opened(name)
    images = images_of()
    assert storage.shape == (28, 28, 1)
    for indices in ([5, len(images) - 1, 0, 5], [7], [3, 4, 5, 6], list(range(len(images))), [6, 5, 4], []):
        batch = storage.read(torch.tensor(indices, dtype=torch.int64))
        assert batch.dtype == torch.uint8
        assert np.array_equal(batch.numpy(), images[indices])
    if name in PIXELS[:6]:
        with pytest.raises(IndexError):
            storage.read(torch.tensor([3, 600]))
    ring = torch.full((2, 64, 28, 28, 1), 77, dtype=torch.uint8)
    for indices in (torch.randperm(600)[:64], torch.arange(100, 164)):
        out = ring[1]
        assert storage.read(indices, out).data_ptr() == out.data_ptr()
        assert np.array_equal(out.numpy(), images[indices.numpy()])
    assert bool((ring[0] == 77).all())
    last = ring[0, :10]
    storage.read(torch.arange(590, 600), last)  # a last batch that is shorter
    assert np.array_equal(last.numpy(), images[590:])
    assert bool((ring[0, 10:] == 77).all())
    if name == "memory":
        storage.read(torch.arange(600)).zero_()  # a batch is the caller's own
        assert np.array_equal(read_all(storage), images_of())
    storage.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memmap", "raw-files", "pt", "pt-single", "hdf5", "hdf5-chunked", "lmdb"])
def test_several_threads_at_once(name: str) -> None:
    storage, images = opened(name), images_of()
    storage.close()  # opened again by whoever comes first
    orders = [torch.randperm(600)[:100] for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for order, batch in zip(orders, pool.map(storage.read, orders), strict=True):
            assert np.array_equal(batch.numpy(), images[order.numpy()])
    storage.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", PIXELS)
def test_pickled_without_its_images(name: str) -> None:
    storage = opened(name)
    content = pickle.dumps(storage)
    assert np.array_equal(read_all(pickle.loads(content)), images_of())
    if name not in NO_FILES:
        assert len(content) < 100_000 < images_of().nbytes


def _send_batches(storages: dict[str, Any], to_parent: Connection) -> None:
    torch.set_num_threads(1)  # as DataLoader's workers do: OpenMP's threads do not survive a fork
    to_parent.send({name: read_all(storage).tobytes() for name, storage in storages.items()})


@pytest.mark.slow
def test_read_in_a_forked_process() -> None:
    storages = {name: opened(name) for name in PIXELS}
    for storage in storages.values():
        storage.read(torch.arange(2))
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send_batches, args=(storages, there))
    child.start()
    there.close()
    with here:
        batches = here.recv()
    child.join()
    expected = images_of().tobytes()
    assert batches == dict.fromkeys(PIXELS, expected)
    assert all(read_all(storage).tobytes() == expected for storage in storages.values())  # and here, afterwards


@pytest.mark.parametrize(
    ("name", "files_to_open", "files_a_batch"),
    [("memmap", 1, 0), ("pt-single", 1, 0), ("pt-whole", 1, 0), ("raw-files", 0, 10), ("pt", 0, 10)],
)
def test_a_slow_drive_is_told_what_is_read(name: str, files_to_open: int, files_a_batch: int) -> None:
    throttle = Counting()
    storage = open_storage(name, SMALL, Place(place(name).root, throttle), train=True)
    whole = name == "pt-whole"  # delivered once
    assert throttle.total == ((place(name).root / "train.pt").stat().st_size if whole else 0, files_to_open)
    storage.read(torch.arange(10))
    files = [Path(p) for p in getattr(storage, "_paths", [])[:10]]
    n_bytes = sum(p.stat().st_size for p in files) if files else 7840
    assert throttle.total == (throttle.told[0][0] if whole else n_bytes, files_to_open + files_a_batch)
    storage.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "memory-float", "idx"])
def test_a_damaged_idx_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    raw = mnist.raw_dir(tmp_path)
    raw.mkdir(parents=True)
    for file in mnist.FILES:
        os.link(mnist.raw_dir(datasets.prepare("digits")).resolve() / file, raw / file)
    images_file, _ = mnist.split_files(tmp_path, True)
    whole = images_file.read_bytes()
    images_file.unlink()
    images_file.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="train-images-idx3-ubyte") as caught:
        open_storage(name, SMALL, Place(tmp_path), train=True)
    assert "\n" not in one_line(caught.value)


def test_idx_augmented() -> None:
    root = Place(datasets.prepare("digits"))
    plain, augmented = IdxStorage(SMALL, root, True).dataset(), IdxStorage(SMALL, root, True, augment=True).dataset()
    torch.manual_seed(0)
    first, second = augmented[5][0], augmented[5][0]
    assert first.shape == plain[5][0].shape
    assert augmented[5][1] == plain[5][1]
    assert not torch.equal(first, second)
    assert not torch.equal(first, plain[5][0])
    torch.manual_seed(0)
    assert torch.equal(augmented[5][0], first)
