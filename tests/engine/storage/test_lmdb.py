"""LMDB: raw pixels and JPEG bytes, a key for each sample."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb as py_lmdb
import numpy as np
import pytest
import torch

from tests.engine.storage.writer_helpers import (
    FORMATS,
    INFO,
    assert_closes,
    assert_whole,
    encoded_of,
    one_line,
    open_files,
    pixels_of,
    write_both,
    write_split,
)
from vitprof.engine.storage import lmdb
from vitprof.engine.storage.contract import Place
from vitprof.errors import DataError, SampleError

LMDB = ["lmdb", "lmdb-encoded"]


def changed(directory: Path, change: Callable[[Any], object]) -> None:
    """Do something to the file in a transaction."""
    path = str(directory / "data.mdb")
    with py_lmdb.open(path, subdir=False, lock=False, map_size=1 << 28) as env, env.begin(write=True) as txn:
        change(txn)


def test_the_keys_and_how_densely_the_training_split_is_stored(written: dict[str, Path], tmp_path: Path) -> None:
    path = str(written["lmdb"] / "data.mdb")
    with py_lmdb.open(path, subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        keys = [bytes(key) for key, _ in txn.cursor()]
        meta = json.loads(txn.get(b"meta-test"))
        assert txn.get(b"test-00000042") == pixels_of("test")[42].tobytes()
    assert keys == sorted(keys)
    assert keys[:3] == [b"meta-test", b"meta-train", b"test-00000000"]
    assert (keys[-1], len(keys)) == (b"train-00000599", 702)
    assert meta == {"n": 100, "shape": [28, 28, 1]}
    write_split(tmp_path, lmdb.PIXEL_FORMAT, "train")
    assert 600 * 784 < (tmp_path / "data.mdb").stat().st_size < 1.15 * 600 * 784


def test_several_storages_share_what_is_open(written: dict[str, Path], tmp_path: Path) -> None:
    """LMDB refuses to open a file twice; a link to it is the same file."""
    link = tmp_path / "link"
    link.symlink_to(written["lmdb"])
    storages = [lmdb.PixelStorage(INFO, Place(place), True) for place in (written["lmdb"], link, written["lmdb"])]
    for storage in storages:
        storage.read(torch.tensor([0]))
    for storage in storages[:2]:
        storage.close()
    assert np.array_equal(storages[2].read(torch.tensor([9])).numpy()[0], pixels_of("train")[9])
    storages[2].close()
    assert open_files(written["lmdb"]) == []


def test_a_storage_that_was_never_closed(written: dict[str, Path]) -> None:
    storage = lmdb.PixelStorage(INFO, Place(written["lmdb"]), True)
    storage.read(torch.tensor([0]))
    assert open_files(written["lmdb"])
    del storage
    gc.collect()
    assert open_files(written["lmdb"]) == []
    assert_closes(lmdb.PixelStorage, written["lmdb"])


# Writing


@pytest.mark.parametrize("name", LMDB)
def test_the_map_grows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "FIRST_MAP_BYTES", 1 << 16)  # less than a chunk
    assert_whole(name, write_both(tmp_path, FORMATS[name][0]))


# Bad input


@pytest.mark.parametrize("name", LMDB)
def test_cut_short(name: str, own: Callable[[str], Path]) -> None:
    """Without a look at the length a read behind the end would kill the process."""
    directory = own(name)
    path = directory / "data.mdb"
    for size in (path.stat().st_size - 1, path.stat().st_size // 2, 8192, 4096, 100, 0):
        with path.open("r+b") as file:
            file.truncate(size)
        one_line(FORMATS[name][1], directory, str(path), "bytes long" if size >= 8192 else "ends inside its header")


def test_not_lmdb(own: Callable[[str], Path]) -> None:
    directory = own("lmdb")
    (directory / "data.mdb").write_bytes(b"something else" * 1000)
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "not an LMDB file")
    (directory / "data.mdb").unlink()
    (directory / "data.mdb").mkdir()
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "directory")


def test_of_another_data_set_or_without_any_of_its_keys(own: Callable[[str], Path]) -> None:
    directory = own("lmdb")
    for meta in (b"{}", b"\xff", b'{"n": 599, "shape": [28, 28, 1]}', b'{"n": 600, "shape": [7]}'):
        changed(directory, lambda txn, meta=meta: txn.put(b"meta-train", meta))
        one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"))
    changed(directory, lambda txn: [txn.delete(key) for key in [bytes(k) for k, _ in txn.cursor()]])
    one_line(lmdb.PixelStorage, directory, str(directory / "data.mdb"), "no key meta-train")


@pytest.mark.parametrize(
    ("value", "what"), [(None, "is missing"), (b"", "holds 0 bytes, not 784"), (bytes(783), "holds 783 bytes, not 784")]
)
def test_a_sample_of_another_length_is_named(value: bytes | None, what: str, own: Callable[[str], Path]) -> None:
    directory = own("lmdb")
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
    directory = own("lmdb-encoded")
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
    directory = own("lmdb")
    storage = lmdb.PixelStorage(INFO, Place(directory), True)
    with (directory / "data.mdb").open("r+b") as file:
        file.truncate(9000)
    with pytest.raises(DataError, match="bytes long"):
        storage.read(torch.tensor([599]))
    assert open_files(directory) == []
