"""What tests of storages share: one made in the test's own home or in one for all, ways to read and to damage it."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine_fixtures import SMALL, error_in_one_line, made_once, never, silent
from vitprof.config.parts import STORAGES
from vitprof.datasets import catalog, on_disk
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.contract import Location
from vitprof.engine.storage.prepare import Prepared, prepare_storage
from vitprof.engine.storage.source import Source, open_source
from vitprof.errors import DataError

PHOTOS = dataclasses.replace(catalog.dataset_info("photos", 20), n_test=2)


def info_of(name: str) -> DatasetInfo:
    """The data set that a storage is made from here."""
    return SMALL if "idx" in STORAGES[name].kinds else PHOTOS


def prepare(
    name: str,
    info: DatasetInfo | None = None,
    *,
    progress: Callable[[float, str], None] = silent,
    **options: Any,
) -> Prepared:
    """`prepare_storage` of a data set that is there already or quick to make."""
    info = info or info_of(name)
    root = on_disk.prepare(info.name, info.n_train if info.any_size else None, skip_unreadable=True)
    return prepare_storage(name, info, root, progress=progress, **({"stop": never} | options))


def place(name: str, info: DatasetInfo | None = None, **options: Any) -> Location:
    """Where the storage of that name lies, made if need be."""
    return Location(prepare(name, info, **options).directory)


def opened(name: str, root: Path | None = None, *, train: bool = True, throttle: Any = None) -> Any:
    """The storage of that name, under `root` or where it is made."""
    return open_storage(
        name, info_of(name), Location(root or place(name).root, throttle), train=train
    )


def source_of(info: DatasetInfo = SMALL, *, train: bool = True) -> Source:
    """A split of the data set itself."""
    root = on_disk.prepare(info.name, info.n_train if info.any_size else None)
    return open_source(info, root, train=train)


def images_of(info: DatasetInfo = SMALL, *, train: bool = True) -> NDArray[np.uint8]:
    """The images of a split (n, height, width, channels), read from the data set itself."""
    source = source_of(info, train=train)
    return source.pixels(0, len(source.ids))


def read_all(storage: Any) -> NDArray[np.uint8]:
    """The images of a whole split, read in one batch."""
    images: NDArray[np.uint8] = storage.read(torch.arange(len(storage))).numpy()
    return images


def samples(storage: Any, chosen: Sequence[int] | None = None) -> list[bytes]:
    """The bytes of every sample, or of those `chosen`: of its pixels, or of its file."""
    indices = range(len(storage)) if chosen is None else chosen
    if hasattr(storage, "read"):
        return [image.tobytes() for image in storage.read(torch.tensor(indices)).numpy()]
    return [storage.read_encoded(i) for i in indices]


def expected(name: str, *, train: bool = True) -> list[bytes]:
    """What `samples` gives of the storage called `name`, from the data set itself."""
    source = source_of(info_of(name), train=train)
    if STORAGES[name].form == "encoded":
        return source.encoded(0, len(source.ids))
    return [image.tobytes() for image in source.pixels(0, len(source.ids))]


def assert_whole(name: str, root: Path | None = None) -> None:
    """Both splits are those of the data set."""
    for train in (True, False):
        storage = opened(name, root, train=train)
        assert samples(storage) == expected(name, train=train)
        assert np.array_equal(storage.labels.numpy(), source_of(info_of(name), train=train).labels)
        storage.close()


def refused(name: str, root: Path, *words: str, train: bool = True) -> None:
    """Opening the storage fails with one line that has these words in it, and leaves nothing open."""
    with error_in_one_line(DataError) as caught:
        opened(name, root, train=train)
    for word in (*words, f"delete {root}"):
        assert word in str(caught.value)
    assert open_files(root) == []


class Counting:
    """A throttle that holds nothing back and notes what is read."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def wait(self, n_bytes: int, n_files: int) -> None:
        self.reads.append((n_bytes, n_files))

    @property
    def total(self) -> tuple[int, int]:
        return sum(n for n, _ in self.reads), sum(n for _, n in self.reads)


def open_files(directory: Path) -> list[str]:
    """Files below `directory` that this process has open or mapped."""
    found = [
        line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()
    ]
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [path.strip() for path in found if str(directory) in path]


def copy_of(name: str, target: Path) -> Path:
    """A copy of a storage under `target`, which a test may damage. Files of single samples are links: replace them
    whole.
    """
    root = place(name).root
    many = STORAGES[name].access == "file for each sample"

    def link(source: str, copy: str) -> None:
        (os.link if many and Path(source).parent != root else shutil.copy)(source, copy)

    return Path(shutil.copytree(root, target / name, copy_function=link))


def damage_file(path: Path, how: str, whole: bytes | None = None) -> None:
    """Replaces a file, or a directory in its place, by nothing, by a directory, or by one of other content."""
    whole = path.read_bytes() if whole is None else whole
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    contents = {
        "empty": b"",
        "cut": whole[:-1],
        "half": whole[: len(whole) // 2],
        "longer": whole + b"x",
    }
    contents["garbage"] = b"x" * len(whole)
    if how == "directory":
        path.mkdir()
    elif how in contents:
        path.write_bytes(contents[how])


@pytest.fixture
def few_photos(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A home of the test's own with 20 photos and 2 for testing, which it may damage; returns the data set's root."""
    shared, home = made_once(tmp_path_factory, "small-digits"), tmp_path / "photos-home"
    monkeypatch.setenv("VITPROF_HOME", str(shared))
    made = on_disk.prepare("photos", PHOTOS.n_train)
    monkeypatch.setenv("VITPROF_HOME", str(home))
    return Path(shutil.copytree(made, home / "data" / PHOTOS.directory))


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


def fill(disk: Path, left: int = 0) -> Path:
    """Fills a small disk but for `left` bytes. Returns the file that takes the room."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while shutil.disk_usage(disk).free > left:
            file.write(bytes(4096))
    return filler
