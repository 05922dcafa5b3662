"""WebDataset's shards: tar files that others read, too."""

import os
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.engine.storage.preparing import (
    PHOTOS,
    copy_of,
    expected,
    open_files,
    opened,
    place,
    refused,
    source_of,
)
from tests.engine_fixtures import error_in_one_line
from vitprof.engine.storage.contract import read_ids
from vitprof.errors import DataError, SampleError
from vitprof.forms import webdataset

pytestmark = pytest.mark.usefixtures("shared_home")
NAME = "webdataset"


def test_any_tar_reader_reads_them(monkeypatch: pytest.MonkeyPatch, small_home: Path) -> None:
    monkeypatch.setattr(webdataset, "SHARD", 8)
    root, source = place(NAME).root, source_of(PHOTOS)
    shards = sorted(root.glob("train/*.tar"))
    assert [path.name for path in shards] == [f"00000{n}.tar" for n in range(3)]
    found: list[tuple[str, bytes]] = []
    for path in shards:
        with tarfile.open(path) as file:
            found += [(member.name, file.extractfile(member).read()) for member in file]  # type: ignore[union-attr]
    assert [data for name, data in found if name.endswith(".jpg")] == source.encoded(0, 20)
    with closing(opened(NAME)) as storage:
        assert [storage.read_encoded(at) for at in range(20)] == source.encoded(0, 20)
        assert len(open_files(root)) == 3
    assert open_files(root) == []


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    root = copy_of(NAME, tmp_path)
    index = root / "train" / "index.npy"
    whole, ids = np.load(index), read_ids(root, train=True)
    np.save(index, whole[1:])
    refused(NAME, root, f"{root / 'train'} holds 19 samples, not 20")
    np.save(index, whole[:, 0])
    refused(NAME, root, "index.npy holds int64 (20, 2)")
    index.write_bytes(b"nonsense")
    refused(NAME, root, "train cannot be read (")
    index.unlink()
    refused(NAME, root, "No such file")
    np.save(index, whole)
    shard = root / "train" / "000000.tar"
    os.truncate(shard, int(whole[7, 0, 0]) + 10)
    with closing(opened(NAME, root)) as storage:
        assert storage.read_encoded(6) == expected(NAME)[6]
        with error_in_one_line(
            SampleError, match=rf"{ids[7]} is cut: its shard is too short; delete"
        ):
            storage.read_encoded(7)
    shard.unlink()
    with pytest.raises(DataError, match="No such file"):
        opened(NAME, root).read_encoded(0)
    assert open_files(root) == []


def test_a_sample_that_the_drive_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: int, n_bytes: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    with closing(opened(NAME)) as storage, monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        with pytest.raises(SampleError, match=r"cannot be read \(Input/output error\)"):
            storage.read_encoded(3)
