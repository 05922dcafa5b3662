"""Photos that a test may damage, a disk that is soon full, and a file of each format of HDF5 and LMDB."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.storage.preparing import few_photos  # noqa: F401
from tests.engine.storage.writer_helpers import FORMATS, small_disk, write_both  # noqa: F401


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each format, written once; not to be changed."""
    top = tmp_path_factory.mktemp("written")
    return {name: write_both(top / name, form) for name, (form, _) in FORMATS.items()}


@pytest.fixture
def own(written: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of them, to be damaged."""
    return lambda name: Path(shutil.copytree(written[name], tmp_path / name))
