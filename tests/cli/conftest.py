"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vitprof.store import RunStore


@pytest.fixture
def mine() -> Iterator[RunStore]:
    """The command line's own store."""
    opened = RunStore()
    yield opened
    opened.close()
