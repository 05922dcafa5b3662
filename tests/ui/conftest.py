"""For the tests of pages: the store behind the dashboard."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner

from vitprof.store import RunStore
from vitprof.ui import resources


@pytest.fixture(scope="package", autouse=True)
def _installed_packages_are_read_once() -> Iterator[None]:
    """Streamlit looks through all installed packages for components, once for each server: for AppTest, at each run of
    a page, which took a quarter of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", once)
        yield


@pytest.fixture(autouse=True)
def _main_stays_what_it_is() -> Iterator[None]:
    """Streamlit puts the script in place of `__main__`, and each worker process that is spawned later runs that."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def fresh() -> Iterator[None]:
    """A server that has just begun, and whose jobs and store are ended afterwards."""
    st.cache_resource.clear()
    yield
    resources.manager().shutdown()
    resources.store().close()
    st.cache_resource.clear()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> RunStore:
    """The dashboard's own store, in a home of this test's own."""
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path))
    monkeypatch.delenv("VITPROF_DB", raising=False)
    return resources.store()
