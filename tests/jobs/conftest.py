"""Homes with data sets, a launcher that has PyTorch loaded, and a store that is soon unavailable."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.engine_fixtures import digits_home, full_home, launcher, small_home  # noqa: F401
from vitprof.store import RunStore


@pytest.fixture
def impatient_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """A store that does not wait for locks; what cannot be beside it goes into a directory of the test's."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with closing(RunStore(f"sqlite:///{tmp_path}/beside/runs.sqlite?timeout=0.01")) as opened:
        yield opened
