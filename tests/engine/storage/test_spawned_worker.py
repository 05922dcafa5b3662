"""HDF5 and LMDB in a worker that was spawned: one for all of their formats, since loading PyTorch takes it 2 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.storage import test_hdf5, test_lmdb
from tests.engine.storage.writer_helpers import assert_safe_with_workers, open_both, write_both


@pytest.mark.slow
def test_each_format_is_opened_anew(tmp_path: Path) -> None:
    opened = []
    for library in (test_hdf5, test_lmdb):
        for name, (form, storage) in library.FORMATS.items():
            opened += open_both(storage, write_both(tmp_path / f"{library.__name__}-{name}", form))
    assert_safe_with_workers(opened, "spawn", workers=1)
