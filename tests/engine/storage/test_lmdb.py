"""LMDB: raw pixels and JPEG bytes, a key for each sample."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb as py_lmdb
import numpy as np
import pytest
import torch

from tests.engine.storage.writer_helpers import (
    INFO,
    Counting,
    assert_closes,
    assert_safe_with_threads,
    assert_safe_with_workers,
    assert_same,
    assert_tells_of_a_full_disk,
    die,
    encoded_of,
    expected,
    facts_of,
    killed,
    one_line,
    open_both,
    open_files,
    pixels_of,
    read_one,
    write_both,
    write_split,
)
from vitprof.engine.storage import lmdb
from vitprof.engine.storage.contract import Format, Place
from vitprof.errors import DataError, SampleError

FORMATS: dict[str, tuple[Format, Callable[..., Any]]] = {
    "pixels": (lmdb.PIXEL_FORMAT, lmdb.PixelStorage),
    "encoded": (lmdb.ENCODED_FORMAT, lmdb.EncodedStorage),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each format, written once; not to be changed."""
    top = tmp_path_factory.mktemp("lmdb")
    return {name: write_both(top / name, form) for name, (form, _) in FORMATS.items()}


@pytest.fixture
def own(written: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of them, to be damaged."""
    return lambda name: Path(shutil.copytree(written[name], tmp_path / name))


def changed(directory: Path, change: Callable[[Any], object]) -> None:
    """Do something to the file in a transaction."""
    path = str(directory / "data.mdb")
    with py_lmdb.open(path, subdir=False, lock=False, map_size=1 << 28) as env, env.begin(write=True) as txn:
        change(txn)


def assert_whole(name: str, directory: Path) -> None:
    for storage, split in open_both(FORMATS[name][1], directory):
        assert torch.equal(storage.labels, torch.from_numpy(facts_of(split).labels))
        if name == "encoded":
            assert [storage.read_encoded(i) for i in range(len(storage))] == encoded_of(split)
        else:
            assert np.array_equal(storage.read(torch.arange(len(storage))).numpy(), pixels_of(split))
        storage.close()


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_is_read(name: str, written: dict[str, Path]) -> None:
    assert_whole(name, written[name])
    assert sorted(path.name for path in written[name].iterdir()) == ["data.mdb", "labels.npz"]


def test_the_keys(written: dict[str, Path]) -> None:
    path = str(written["pixels"] / "data.mdb")
    with py_lmdb.open(path, subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        keys = [bytes(key) for key, _ in txn.cursor()]
        meta = json.loads(txn.get(b"meta-test"))
        assert txn.get(b"test-00000042") == pixels_of("test")[42].tobytes()
    assert keys == sorted(keys)
    assert keys[:3] == [b"meta-test", b"meta-train", b"test-00000000"]
    assert (keys[-1], len(keys)) == (b"train-00000599", 702)
    assert meta == {"n": 100, "shape": [28, 28, 1]}


def test_what_is_read_is_told_to_the_drive(written: dict[str, Path]) -> None:
    throttle = Counting()
    pixels = lmdb.PixelStorage(INFO, Place(written["pixels"], throttle), True)
    pixels.read(torch.tensor([5, 3, 5]))
    encoded = lmdb.EncodedStorage(INFO, Place(written["encoded"], throttle), True)
    encoded.read_encoded(17)
    assert throttle.told == [(3 * 784, 0), (len(encoded_of("train")[17]), 0)]
    pixels.close()
    encoded.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_forked_workers(name: str, written: dict[str, Path]) -> None:
    assert_safe_with_workers(open_both(FORMATS[name][1], written[name]), "fork")


def test_threads(written: dict[str, Path]) -> None:
    assert_safe_with_threads(lmdb.EncodedStorage, written["encoded"])


def test_several_storages_share_what_is_open(written: dict[str, Path], tmp_path: Path) -> None:
    """LMDB refuses to open a file twice; a link to it is the same file."""
    link = tmp_path / "link"
    link.symlink_to(written["pixels"])
    storages = [lmdb.PixelStorage(INFO, Place(place), True) for place in (written["pixels"], link, written["pixels"])]
    for storage in storages:
        storage.read(torch.tensor([0]))
    for storage in storages[:2]:
        storage.close()
    assert np.array_equal(storages[2].read(torch.tensor([9])).numpy()[0], pixels_of("train")[9])
    storages[2].close()
    assert open_files(written["pixels"]) == []


def test_a_storage_that_was_never_closed(written: dict[str, Path]) -> None:
    storage = lmdb.PixelStorage(INFO, Place(written["pixels"]), True)
    storage.read(torch.tensor([0]))
    assert open_files(written["pixels"])
    del storage
    gc.collect()
    assert open_files(written["pixels"]) == []
    assert_closes(lmdb.PixelStorage, written["pixels"])


@pytest.mark.parametrize("name", FORMATS)
def test_a_forked_child_opens_the_file_anew(name: str, written: dict[str, Path]) -> None:
    opened = open_both(FORMATS[name][1], written[name])
    for storage, _ in opened:
        read_one(storage, 0)
    inherited = opened[0][0]._opened

    def work() -> None:
        for storage, _ in opened:
            read_one(storage, 1)
            assert storage._opened is opened[0][0]._opened is not inherited
        for storage, _ in opened:
            storage.close()
        assert open_files(written[name]) == []
        die()

    killed(work)
    for storage, split in opened:
        assert_same([read_one(storage, 2)], expected(storage, split)[2:3])
        storage.close()


# Writing


@pytest.mark.parametrize("name", FORMATS)
def test_the_map_grows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "FIRST_MAP_BYTES", 1 << 16)  # less than a chunk
    assert_whole(name, write_both(tmp_path, FORMATS[name][0]))


def test_the_training_split_is_stored_densely(tmp_path: Path) -> None:
    write_split(tmp_path, lmdb.PIXEL_FORMAT, "train")
    pixels = 600 * 784
    assert pixels < (tmp_path / "data.mdb").stat().st_size < 1.15 * pixels


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk(name: str, request: pytest.FixtureRequest) -> None:
    assert_tells_of_a_full_disk(FORMATS[name][0], request.getfixturevalue("small_disk"))


# Bad input


@pytest.mark.parametrize("name", FORMATS)
def test_cut_short(name: str, own: Callable[[str], Path]) -> None:
    """Without a look at the length a read behind the end would kill the process."""
    directory = own(name)
    path = directory / "data.mdb"
    for size in (path.stat().st_size - 1, path.stat().st_size // 2, 8192, 4096, 100, 0):
        with path.open("r+b") as file:
            file.truncate(size)
        one_line(FORMATS[name][1], directory, str(path), "bytes long" if size >= 8192 else "ends inside its header")


def test_not_lmdb(own: Callable[[str], Path]) -> None:
    directory = own("pixels")
    (directory / "data.mdb").write_bytes(b"something else" * 1000)
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "not an LMDB file")
    (directory / "data.mdb").unlink()
    (directory / "data.mdb").mkdir()
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "directory")


def test_missing(own: Callable[[str], Path], tmp_path: Path) -> None:
    directory = own("pixels")
    (directory / "data.mdb").unlink()
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "missing")
    one_line(lmdb.EncodedStorage, tmp_path / "nowhere", "nowhere", "missing")


def test_without_any_of_its_keys(own: Callable[[str], Path]) -> None:
    directory = own("pixels")
    changed(directory, lambda txn: [txn.delete(key) for key in [bytes(k) for k, _ in txn.cursor()]])
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "no key meta-train")


@pytest.mark.parametrize("meta", [b"{}", b"\xff", b'{"n": 599, "shape": [28, 28, 1]}', b'{"n": 600, "shape": [7]}'])
def test_of_another_data_set(meta: bytes, own: Callable[[str], Path]) -> None:
    directory = own("pixels")
    changed(directory, lambda txn: txn.put(b"meta-train", meta))
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"))


@pytest.mark.parametrize(
    ("value", "what"), [(None, "is missing"), (b"", "holds 0 bytes, not 784"), (bytes(783), "holds 783 bytes, not 784")]
)
def test_a_sample_of_another_length_is_named(value: bytes | None, what: str, own: Callable[[str], Path]) -> None:
    directory = own("pixels")
    key = b"train-00000007"
    changed(directory, lambda txn: txn.delete(key) if value is None else txn.put(key, value))
    # Two wrong lengths that are right together must not pass as two images.
    changed(directory, lambda txn: txn.put(b"train-00000008", bytes(785)))
    storage = lmdb.PixelStorage(INFO, Place(directory), True)
    with pytest.raises(SampleError, match=rf"data\.mdb: key train-00000007 {what}; delete {directory}") as caught:
        storage.read(torch.tensor([3, 7, 8]))
    assert "\n" not in str(caught.value)
    assert np.array_equal(storage.read(torch.tensor([6])).numpy()[0], pixels_of("train")[6])
    storage.close()
    assert open_files(directory) == []


@pytest.mark.parametrize(("value", "what"), [(None, "is missing"), (b"", "is empty")])
def test_an_encoded_sample_that_is_not_there_is_named(
    value: bytes | None, what: str, own: Callable[[str], Path]
) -> None:
    directory = own("encoded")
    key = b"train-00000007"
    changed(directory, lambda txn: txn.delete(key) if value is None else txn.put(key, value))
    storage = lmdb.EncodedStorage(INFO, Place(directory), True)
    with pytest.raises(SampleError, match=rf"data\.mdb: key train-00000007 {what}; delete {directory}"):
        storage.read_encoded(7)
    assert storage.name_of(7) == f"{directory / 'data.mdb'}: key train-00000007"
    assert storage.read_encoded(8) == encoded_of("train")[8]
    storage.close()
    assert open_files(directory) == []


def test_cut_short_between_opening_and_reading(own: Callable[[str], Path]) -> None:
    directory = own("pixels")
    storage = lmdb.PixelStorage(INFO, Place(directory), True)
    with (directory / "data.mdb").open("r+b") as file:
        file.truncate(9000)
    with pytest.raises(DataError, match="bytes long"):
        storage.read(torch.tensor([599]))
    assert open_files(directory) == []
