"""What tests of storages share: a storage of the small `digits` made in the test's own home, and a few photos."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine_fixtures import SMALL, never, silent
from vitprof.config import catalog
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data import datasets
from vitprof.engine.data.datasets import open_source
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.prepare import Prepared, prepare_storage

PHOTOS = dataclasses.replace(catalog.dataset_info("photos", 20), n_test=2)


def prepare(
    name: str, info: DatasetInfo = SMALL, *, progress: Callable[[float, str], None] = silent, **options: Any
) -> Prepared:
    """`prepare_storage` of a data set that is there already or quick to make."""
    root = datasets.prepare(info.name, info.n_train if info.any_size else None, skip_unreadable=True)
    return prepare_storage(name, info, root, progress=progress, **({"stop": never} | options))


def place(name: str, info: DatasetInfo = SMALL, **options: Any) -> Place:
    """Where the storage of that name lies, made if need be."""
    return Place(prepare(name, info, **options).directory)


def images_of(info: DatasetInfo = SMALL, *, train: bool = True) -> NDArray[np.uint8]:
    """The images of a split (n, height, width, channels), read from the data set itself."""
    root = datasets.prepare(info.name, info.n_train if info.any_size else None)
    source = open_source(info, root, train=train)
    return source.pixels(0, len(source.ids))


def read_all(storage: Any) -> NDArray[np.uint8]:
    """The images of a whole split, read in one batch."""
    images: NDArray[np.uint8] = storage.read(torch.arange(len(storage))).numpy()
    return images


def open_files() -> set[str]:
    """What this process has open: targets of its descriptors, and files mapped into its memory."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue  # the one that listed them
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return found | {fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6}


def copy_of(name: str, target: Path) -> Path:
    """A copy of a storage under `target`, which a test may damage. Image files are links: replace them as a whole."""

    def link(source: str, copy: str) -> None:
        (shutil.copy if Path(source).suffix in (".json", ".npz") else os.link)(source, copy)

    return Path(shutil.copytree(place(name).root, target / name, copy_function=link))


def damage_file(path: Path, how: str) -> None:
    """Replaces a file by nothing, by a directory, or by one of other content."""
    whole = path.read_bytes()
    path.unlink()
    contents = {"empty": b"", "cut": whole[:-1], "half": whole[: len(whole) // 2], "longer": whole + b"x"}
    contents["garbage"] = b"x" * len(whole)
    if how == "directory":
        path.mkdir()
    elif how in contents:
        path.write_bytes(contents[how])


def few_photos_made_once(factory: pytest.TempPathFactory) -> Path:
    """A home with 20 photos for training and 2 for testing."""
    home = factory.getbasetemp() / "few-photos"
    if not home.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VITPROF_HOME", str(home))
            datasets.prepare("photos", PHOTOS.n_train)
    return home


@pytest.fixture
def few_photos(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own with a few photos, which it may damage; returns the root of the data set."""
    home = tmp_path / "photos-home"
    shutil.copytree(few_photos_made_once(tmp_path_factory) / "data", home / "data")
    monkeypatch.setenv("VITPROF_HOME", str(home))
    return home / "data" / PHOTOS.directory
