"""What tests of a storage's writers and readers share: samples, a run of the writers, ways to read and to look."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import gc
import os
import resource
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from vitprof.config.catalog import DATASETS
from vitprof.engine.storage import hdf5, lmdb
from vitprof.engine.storage.contract import Format, Place, SplitFacts, write_labels
from vitprof.errors import DataError

INFO = dataclasses.replace(DATASETS["digits"], n_train=600, n_test=100)
COUNTS = {"train": 600, "test": 100}
SHAPE = (28, 28, 1)
FORMATS: dict[str, tuple[Format, Callable[..., Any]]] = {
    "contiguous": (hdf5.CONTIGUOUS_FORMAT, hdf5.ContiguousStorage),
    "chunked": (hdf5.CHUNKED_FORMAT, hdf5.ChunkedStorage),
    "encoded": (hdf5.ENCODED_FORMAT, hdf5.EncodedStorage),
    "lmdb": (lmdb.PIXEL_FORMAT, lmdb.PixelStorage),
    "lmdb-encoded": (lmdb.ENCODED_FORMAT, lmdb.EncodedStorage),
}


def pixels_of(split: str) -> np.ndarray:
    """Random images, the same in every process."""
    return np.random.default_rng(len(split)).integers(0, 256, (COUNTS[split], *SHAPE), dtype=np.uint8)


def encoded_of(split: str) -> list[bytes]:
    """What could be files: bytes of many lengths, some longer than a page."""
    generator = np.random.default_rng(len(split))
    return [generator.bytes(int(n)) for n in generator.integers(1, 9000, COUNTS[split])]


def facts_of(split: str) -> SplitFacts:
    n = COUNTS[split]
    labels = np.random.default_rng(n).integers(0, 10, n)
    return SplitFacts(split, n, SHAPE, [f"{split}-{i:06d}" for i in range(n)], labels)


def images_of(form: Format, split: str, start: int, stop: int) -> Any:
    return (pixels_of if form.needs == "pixels" else encoded_of)(split)[start:stop]


def write_split(directory: Path, form: Format, split: str) -> None:
    """All samples of a split, in chunks."""
    with contextlib.closing(form.open_writer(directory, facts_of(split))) as writer:
        for i in range(0, COUNTS[split], 128):
            writer.add(i, images_of(form, split, i, min(i + 128, COUNTS[split])))
        writer.finish()


def write_both(directory: Path, form: Format) -> Path:
    directory.mkdir(exist_ok=True)
    for split in COUNTS:
        write_split(directory, form, split)
    write_labels(directory, {split: (facts_of(split).ids, facts_of(split).labels) for split in COUNTS})
    return directory


class Counting:
    """A throttle that holds nothing back and adds up what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def wait(self, n_bytes: int, n_files: int) -> None:
        self.told.append((n_bytes, n_files))

    @property
    def total(self) -> tuple[int, int]:
        return sum(n for n, _ in self.told), sum(n for _, n in self.told)


def open_both(cls: Callable[..., Any], directory: Path) -> list[tuple[Any, str]]:
    return [(cls(INFO, Place(directory), split == "train"), split) for split in COUNTS]


def assert_whole(name: str, directory: Path) -> None:
    """Both splits are as they were written, in the format of this name."""
    for storage, split in open_both(FORMATS[name][1], directory):
        assert torch.equal(storage.labels, torch.from_numpy(facts_of(split).labels))
        if hasattr(storage, "read"):
            assert np.array_equal(storage.read(torch.arange(len(storage))).numpy(), pixels_of(split))
        else:
            assert [storage.read_encoded(i) for i in range(len(storage))] == encoded_of(split)
        storage.close()


class Reads(Dataset[Tensor]):
    """Item i is what the storage gives for sample i: an image, or the bytes as a tensor."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __len__(self) -> int:
        return len(self.storage)

    def __getitem__(self, index: int) -> Tensor:
        return read_one(self.storage, index)


def read_one(storage: Any, index: int) -> Tensor:
    if hasattr(storage, "read"):
        image: Tensor = storage.read(torch.tensor([index]))[0]
        return image
    return torch.frombuffer(bytearray(storage.read_encoded(index)), dtype=torch.uint8)


def expected(storage: Any, split: str) -> list[Tensor]:
    if hasattr(storage, "read"):
        return list(torch.from_numpy(pixels_of(split)))
    return [torch.frombuffer(bytearray(raw), dtype=torch.uint8) for raw in encoded_of(split)]


def through_workers(dataset: Dataset[Tensor]) -> list[Tensor]:
    """Every item, read by two forked workers of a DataLoader."""
    loader = DataLoader(
        dataset, batch_size=50, num_workers=2, collate_fn=list, multiprocessing_context="fork", shuffle=False
    )
    return [image.clone() for batch in loader for image in batch]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def assert_safe_with_workers(opened: list[tuple[Any, str]]) -> None:
    """Read here first, so that a child would inherit what is open; all splits in one worker; read again afterwards."""
    for storage, split in opened:
        assert_same([read_one(storage, 5)], expected(storage, split)[5:6])
    found = through_workers(ConcatDataset([Reads(storage) for storage, _ in opened]))
    assert_same(found, [image for storage, split in opened for image in expected(storage, split)])
    for storage, split in opened:
        assert_same([read_one(storage, 7)], expected(storage, split)[7:8])
        storage.close()


def assert_safe_with_threads(cls: Callable[..., Any], directory: Path) -> None:
    """Eight threads read both splits, all from the first moment on."""
    storages = open_both(cls, directory)
    for storage, split in storages:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i, s=storage: read_one(s, i), range(len(storage))))
        assert_same(found, expected(storage, split))
    for storage, _ in storages:
        storage.close()
    assert open_files(directory) == []


def assert_closes(cls: Callable[..., Any], directory: Path) -> None:
    """Nothing is open before the first read nor after the last close, and a closed storage reads again."""
    storages = open_both(cls, directory)
    assert open_files(directory) == []
    for _ in range(2):
        for storage, split in storages:
            assert_same([read_one(storage, 3)], expected(storage, split)[3:4])
        assert open_files(directory)
        storages[0][0].close()
        assert_same([read_one(storages[1][0], 4)], expected(*storages[1])[4:5])
        storages[1][0].close()
        storages[1][0].close()
        assert open_files(directory) == []


def open_files(directory: Path) -> list[str]:
    """Files below `directory` that this process has open or mapped."""
    found = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [path.strip() for path in found if str(directory) in path]


def die(*_: object, **__: object) -> None:
    """End this process as a kill from outside does."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object]) -> None:
    """Do `work` in a child process, in the course of which it is to `die`."""
    if not (child := os.fork()):
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child did not come to the moment of its death"
    assert os.WTERMSIG(status) == signal.SIGKILL


def one_line(cls: Callable[..., Any], directory: Path, *words: str, train: bool = True) -> None:
    """Opening the storage fails with one line that has these words in it, and leaves nothing open."""
    with pytest.raises(DataError) as caught:
        cls(INFO, Place(directory), train)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, f"delete {directory}"):
        assert word in message
    assert open_files(directory) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB. It takes root to have one."""
    top = tmp_path / "small disk"
    top.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", top], capture_output=True, check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    yield top
    subprocess.run(["umount", "--lazy", top], check=True)


def assert_tells_of_a_full_disk(form: Format, small_disk: Path) -> None:
    """The error is the system's own, at whatever point the disk is full, and the process goes on."""
    filler = small_disk / "filler"
    for left in (400_000, 20_000, 0):
        directory = small_disk / "storage"
        directory.mkdir()
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while shutil.disk_usage(small_disk).free > left:
                file.write(bytes(4096))

        def work(directory: Path = directory) -> None:
            with pytest.raises(OSError) as caught:
                write_both(directory, form)
            assert caught.value.errno == errno.ENOSPC
            assert open_files(directory) == []

        survives(work)
        filler.unlink()
        shutil.rmtree(directory)


def assert_tells_of_a_limit(form: Format, directory: Path, whole: Path) -> None:
    """A write that the system refuses anywhere in the file is its own error, and the process goes on."""
    size = sum(path.stat().st_size for path in whole.glob("data.*"))

    def work(limit: int, target: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(OSError) as caught:
            write_both(target, form)
        assert caught.value.errno == errno.EFBIG
        assert open_files(target) == []

    for limit in (0, 500, 3000, 20_000, size // 2, size - 9000, size - 1):
        target = directory / str(limit)
        target.mkdir()
        survives(functools.partial(work, limit, target))


def survives(work: Callable[[], object]) -> None:
    """Do `work` in a child process, which must come to its end: a broken one could end this process too."""
    if not (child := os.fork()):
        status = 1
        try:
            work()
            gc.collect()
            status = 0
        except BaseException:
            with contextlib.suppress(OSError):  # it may not write any more
                traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
