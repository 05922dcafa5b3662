"""For every test of the loaders: one torch thread; and photos that may be damaged."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine_fixtures import N_PHOTOS, photos_home  # noqa: F401
from vitprof.datasets.catalog import dataset_info


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Two OpenMP threads on two shared cores can take seconds for a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def photos(photos_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The home that all tests of photos share."""
    monkeypatch.setenv("VITPROF_HOME", str(photos_home))


@pytest.fixture
def own_photos(photos_home: Path, tmp_path: Path) -> Path:  # noqa: F811
    """The root of a copy of `photos` whose files, which are links, a test may replace by damaged ones."""
    name = dataset_info("photos", N_PHOTOS).directory
    return Path(
        shutil.copytree(photos_home / "data" / name, tmp_path / name, copy_function=os.link)
    )
