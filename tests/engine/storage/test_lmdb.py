"""LMDB: raw pixels and JPEG bytes, a key for each sample."""

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb as py_lmdb
import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import (
    assert_whole,
    copy_of,
    expected,
    images_of,
    open_files,
    opened,
    place,
    refused,
)
from tests.engine_fixtures import error_in_one_line
from vitprof.engine.storage.contract import read_ids
from vitprof.errors import DataError, SampleError
from vitprof.forms import lmdb

pytestmark = pytest.mark.usefixtures("shared_home")
LMDB = ["lmdb", "lmdb-encoded"]


def changed(root: Path, change: Callable[[Any], object]) -> None:
    """Do something to the file in a transaction."""
    path = str(root / "train" / "data.mdb")
    with (
        py_lmdb.open(path, subdir=False, lock=False, map_size=1 << 28) as env,
        env.begin(write=True) as txn,
    ):
        change(txn)


def test_the_keys_and_how_densely_the_pixels_are_stored() -> None:
    path = place("lmdb").root / "train" / "data.mdb"
    with (
        py_lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env,
        env.begin() as txn,
    ):
        keys = [bytes(key) for key, _ in txn.cursor()]
        assert txn.get(b"00000042 00") == images_of()[42].tobytes()
    assert keys == sorted(keys) == [b"%08d 00" % number for number in range(600)]
    assert 600 * 784 < path.stat().st_size < 1.1 * 600 * 784


def test_several_storages_share_what_is_open_and_one_may_close_twice_or_never(
    tmp_path: Path,
) -> None:
    """LMDB refuses to open a file twice; a link to it is the same file."""
    root, link = place("lmdb").root, tmp_path / "link"
    link.symlink_to(root)
    storages = [opened("lmdb", place) for place in (root, link, root)]
    assert open_files(root) == []
    for _ in range(2):  # a closed storage reads again
        for storage in storages:
            storage.read(torch.tensor([0]))
        for storage in storages[:2]:
            storage.close()
            storage.close()
        assert np.array_equal(storages[2].read(torch.tensor([9])).numpy()[0], images_of()[9])
        storages[2].close()
        assert open_files(root) == []
    storages[2].read(torch.tensor([0]))
    assert open_files(root)
    del storage, storages
    gc.collect()
    assert open_files(root) == []


@pytest.mark.parametrize("name", LMDB)
def test_the_map_grows(name: str, small_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "FIRST_MAP_BYTES", 1 << 16)  # less than a chunk
    assert_whole(name)


@pytest.mark.parametrize("name", LMDB)
def test_cut_short(name: str, tmp_path: Path) -> None:
    """Without a look at the length a read behind the end would kill the process."""
    root = copy_of(name, tmp_path)
    path = root / "train" / "data.mdb"
    for size in (path.stat().st_size - 1, path.stat().st_size // 2, 8192, 4096, 100, 0):
        os.truncate(path, size)
        words = "bytes long" if size >= 8192 else "ends inside its header"
        refused(name, root, str(path.parent), words)


def test_not_lmdb_or_of_another_number_of_samples(tmp_path: Path) -> None:
    root = copy_of("lmdb", tmp_path)
    path = root / "train" / "data.mdb"
    changed(root, lambda txn: txn.delete(b"00000599 00"))
    refused("lmdb", root, str(path.parent), "holds 599 samples, not 600")
    path.write_bytes(b"something else" * 1000)
    refused("lmdb", root, str(path.parent), "not an LMDB file")
    path.unlink()
    path.mkdir()
    refused("lmdb", root, str(path.parent), "directory")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("lmdb", None, "is missing"),
        ("lmdb", b"", "holds 0 bytes, not 784"),
        ("lmdb", bytes(783), "holds 783 bytes, not 784"),
        ("lmdb-encoded", None, "is missing"),
        ("lmdb-encoded", b"", "is empty"),
    ],
)
def test_a_missing_sample_or_a_wrong_length_is_named(
    name: str, value: bytes | None, what: str, tmp_path: Path
) -> None:
    root = copy_of(name, tmp_path)
    key = b"00000007 00"
    changed(root, lambda txn: txn.delete(key) if value is None else txn.put(key, value))
    if value is None:
        # As many as there should be.
        changed(root, lambda txn: txn.put(b"other", b""))
    # Two wrong lengths that are right together must not pass as two images.
    changed(root, lambda txn: txn.put(b"00000008 00", bytes(785)))
    storage = opened(name, root)
    assert storage.name_of(7) == f"{root / 'train'}: {read_ids(root, train=True)[7]}"
    with error_in_one_line(
        SampleError, match=re.escape(f"{storage.name_of(7)} {what}; delete {root}")
    ):
        storage.read(torch.tensor([3, 7, 8])) if name == "lmdb" else storage.read_encoded(7)
    if name == "lmdb":
        assert np.array_equal(storage.read(torch.tensor([6])).numpy()[0], images_of()[6])
    else:
        assert storage.read_encoded(6) == expected(name)[6]
    storage.close()
    assert open_files(root) == []


def test_cut_short_between_opening_and_reading(tmp_path: Path) -> None:
    root = copy_of("lmdb", tmp_path)
    storage = opened("lmdb", root)
    os.truncate(root / "train" / "data.mdb", 9000)
    with pytest.raises(DataError, match="bytes long"):
        storage.read(torch.tensor([599]))
    assert open_files(root) == []
