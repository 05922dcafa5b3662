"""What every storage promises: the same samples whichever way they are kept, in whichever process they are read."""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import (
    Counting,
    copy_of,
    damage_file,
    expected,
    images_of,
    open_files,
    opened,
    place,
    read_all,
    refused,
    samples,
)
from tests.engine_fixtures import SMALL, error_in_one_line, survives
from vitprof.config.availability import installed
from vitprof.datasets import mnist, on_disk
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.contract import Location, Process
from vitprof.engine.storage.torchvision_datasets import IdxStorage
from vitprof.errors import DataError

pytestmark = pytest.mark.usefixtures("shared_home")
LIBRARY = ["hdf5", "hdf5-chunked", "lmdb", "hdf5-encoded", "lmdb-encoded", "webdataset"]
LIBRARY += ["parquet", *(name for name in ("litdata",) if installed(name))]
"""Those in large files of HDF5, LMDB, tar, Parquet or chunks, which must be opened anew in each process."""
PIXELS = ["memmap", "raw-files", "pt", "pt-single", "pt-whole", "memory", *LIBRARY[:3]]
EVERY = [*PIXELS, "files", *LIBRARY[3:]]


@pytest.mark.parametrize("name", PIXELS)
def test_images_in_whole_batches_and_into_a_buffer(name: str) -> None:
    storage = opened(name)
    images = images_of()
    assert storage.shape == (28, 28, 1)
    for indices in (
        [5, len(images) - 1, 0, 5],
        [7],
        [3, 4, 5, 6],
        list(range(len(images))),
        [6, 5, 4],
        [],
    ):
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
    last = ring[0, :10]
    storage.read(torch.arange(590, 600), last)  # a last batch that is shorter
    assert np.array_equal(last.numpy(), images[590:])
    assert bool((ring[0, 10:] == 77).all())
    if name == "memory":
        storage.read(torch.arange(600)).zero_()  # a batch is the caller's own
        assert np.array_equal(read_all(storage), images)
    storage.close()


@pytest.mark.parametrize("name", EVERY)
def test_in_several_threads_from_the_first_moment_on(name: str) -> None:
    wanted = expected(name)
    storage = opened(name)
    storage.close()  # opened again by whoever comes first
    orders = [torch.randperm(len(wanted))[:60].tolist() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for order, batch in zip(orders, pool.map(partial(samples, storage), orders), strict=True):
            assert batch == [wanted[i] for i in order]
    storage.close()
    storage.close()
    assert open_files(place(name).root) == []


@pytest.mark.parametrize("name", EVERY)
def test_what_a_worker_is_sent_holds_neither_images_nor_what_its_parent_has_open(name: str) -> None:
    storage = opened(name, train=False)
    wanted = samples(storage)
    content = pickle.dumps(storage)
    storage.close()
    assert open_files(place(name).root) == []
    copy = pickle.loads(content)
    assert samples(copy) == wanted
    copy.close()
    if name != "memory":
        assert len(content) < 30_000 < sum(map(len, wanted))


def test_a_forked_child_opens_files_anew() -> None:
    """With its parent's descriptor it would read wrong data, or its parent would."""
    keys = [*((name, False) for name in EVERY), *((name, True) for name in LIBRARY)]
    storages = {(name, train): opened(name, train=train) for name, train in keys}
    wanted = {(name, train): expected(name, train=train) for name, train in keys}
    assert {key: samples(storage) for key, storage in storages.items()} == wanted
    generation = Process.generation

    def work() -> None:
        torch.set_num_threads(
            1
        )  # as DataLoader's workers do: OpenMP's threads do not survive a fork
        assert {key: samples(storage) for key, storage in storages.items()} == wanted
        assert {storages[name, True]._opened_by for name in LIBRARY} == {generation + 1}
        for storage in storages.values():
            storage.close()
        assert not [file for name in LIBRARY for file in open_files(place(name).root)]

    survives(work)
    for key, storage in storages.items():  # and here, afterwards
        assert samples(storage) == wanted[key]
        storage.close()


@pytest.mark.parametrize(
    ("name", "files_to_open", "files_a_batch"),
    [
        ("memmap", 1, 0),
        ("pt-single", 1, 0),
        ("pt-whole", 1, 0),
        ("raw-files", 0, 10),
        ("pt", 0, 10),
        ("files", 0, 10),
    ]
    + [(name, 0, 0) for name in LIBRARY],
)
def test_a_slow_drive_is_told_what_is_read(
    name: str, files_to_open: int, files_a_batch: int
) -> None:
    throttle = Counting()
    storage = opened(name, throttle=throttle)
    whole = name == "pt-whole"  # delivered once
    assert throttle.total == (
        (place(name).root / "train.pt").stat().st_size if whole else 0,
        files_to_open,
    )
    if hasattr(storage, "read"):
        storage.read(torch.arange(10))
        files = [Path(p) for p in getattr(storage, "_paths", [])[:10]]
        n_bytes = sum(p.stat().st_size for p in files) if files else 7840
    else:
        n_bytes = sum(len(storage.read_encoded(i)) for i in range(10))
    assert throttle.total == (
        throttle.reads[0][0] if whole else n_bytes,
        files_to_open + files_a_batch,
    )
    storage.close()


@pytest.mark.parametrize("name", LIBRARY[:5])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    *_, path = [*root.glob("train/*"), *root.glob("data.*")]
    path.unlink()
    refused(name, root, str(path if path.parent == root else path.parent), "No such file")
    refused(name, tmp_path / "nowhere", "nowhere", "No such file")


@pytest.mark.parametrize("name", ["memory-float", "idx"])
def test_a_damaged_idx_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(on_disk.prepare("digits"), tmp_path / "digits"))
    damage_file(mnist.split_files(root, True)[0], "cut")
    with error_in_one_line(DataError, match="train-images-idx3-ubyte"):
        open_storage(name, SMALL, Location(root), train=True)


def test_idx_augmented() -> None:
    root = Location(on_disk.prepare("digits"))
    plain, augmented = (
        IdxStorage(SMALL, root, True).dataset(),
        IdxStorage(SMALL, root, True, augment=True).dataset(),
    )
    torch.manual_seed(0)
    first, second = augmented[5][0], augmented[5][0]
    assert first.shape == plain[5][0].shape
    assert augmented[5][1] == plain[5][1]
    assert not torch.equal(first, second)
    assert not torch.equal(first, plain[5][0])
    torch.manual_seed(0)
    assert torch.equal(augmented[5][0], first)
