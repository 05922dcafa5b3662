"""What holds for every file of HDF5 and of LMDB: read as it was written, in any thread or process, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine.storage.writer_helpers import (
    FORMATS,
    INFO,
    Counting,
    assert_safe_with_threads,
    assert_safe_with_workers,
    assert_same,
    assert_tells_of_a_full_disk,
    assert_whole,
    die,
    encoded_of,
    expected,
    killed,
    one_line,
    open_both,
    open_files,
    read_one,
)
from vitprof.engine.storage.contract import Place, Process

EVERY = pytest.mark.parametrize("name", FORMATS)


@EVERY
def test_what_was_written_is_read_and_told_to_the_drive(name: str, written: dict[str, Path]) -> None:
    assert_whole(name, written[name])
    file = "data.mdb" if "lmdb" in name else "data.h5"
    assert sorted(path.name for path in written[name].iterdir()) == [file, "labels.npz"]
    throttle = Counting()
    storage = FORMATS[name][1](INFO, Place(written[name], throttle), True)
    if hasattr(storage, "read"):
        storage.read(torch.tensor([5, 3, 5]))
    else:
        storage.read_encoded(17)
    assert throttle.told == [(3 * 784 if hasattr(storage, "read") else len(encoded_of("train")[17]), 0)]
    storage.close()


@pytest.mark.slow
@EVERY
def test_forked_workers(name: str, written: dict[str, Path]) -> None:
    assert_safe_with_workers(open_both(FORMATS[name][1], written[name]))


@EVERY
def test_a_worker_that_is_sent_all_it_needs(name: str, written: dict[str, Path]) -> None:
    """As one that is spawned: what its parent has open is not in what it is sent."""
    opened = open_both(FORMATS[name][1], written[name])
    for storage, _ in opened:
        read_one(storage, 5)
    sent = pickle.dumps([storage for storage, _ in opened])
    for storage, _ in opened:
        storage.close()
    assert open_files(written[name]) == []

    def work() -> None:
        for storage, (_, split) in zip(pickle.loads(sent), opened, strict=True):
            assert_same([read_one(storage, i) for i in range(len(storage))], expected(storage, split))
        die()

    killed(work)


@pytest.mark.parametrize("name", ["chunked", "encoded", "lmdb-encoded"])
def test_threads(name: str, written: dict[str, Path]) -> None:
    assert_safe_with_threads(FORMATS[name][1], written[name])


@EVERY
def test_a_forked_child_opens_the_file_anew(name: str, written: dict[str, Path]) -> None:
    opened = open_both(FORMATS[name][1], written[name])
    for storage, _ in opened:
        read_one(storage, 0)
    generation = Process.generation

    def work() -> None:
        for storage, _ in opened:
            read_one(storage, 1)
            assert storage._opened_by == generation + 1
            if "lmdb" in name:
                assert storage._opened is opened[0][0]._opened
        for storage, _ in opened:
            storage.close()
        assert open_files(written[name]) == []
        die()

    killed(work)
    for storage, split in opened:
        assert_same([read_one(storage, 2)], expected(storage, split)[2:3])
        storage.close()


@pytest.mark.slow
@EVERY
def test_a_full_disk(name: str, small_disk: Path) -> None:
    assert_tells_of_a_full_disk(FORMATS[name][0], small_disk)


@EVERY
def test_missing(name: str, own: Callable[[str], Path], tmp_path: Path) -> None:
    directory = own(name)
    (path,) = directory.glob("data.*")
    path.unlink()
    one_line(FORMATS[name][1], directory, str(path), "missing")
    one_line(FORMATS[name][1], tmp_path / "nowhere", "nowhere" if "lmdb" in name else "nowhere/data.h5", "missing")
