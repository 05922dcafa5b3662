"""For the tests of pages: the store behind the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st

from vitprof.store import RunStore
from vitprof.ui import resources


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """The dashboard's own store, in a home of this test's own."""
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path))
    monkeypatch.delenv("VITPROF_DB", raising=False)
    st.cache_resource.clear()
    yield resources.store()
    resources.manager().shutdown()
    resources.store().close()
    st.cache_resource.clear()
