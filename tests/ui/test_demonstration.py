"""Every page of the demonstration has something to show; app.py, around all of them, says what it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import streamlit as st

from tests.ui.dashboard import app, read, said
from vitprof import demo
from vitprof.store import RunStore
from vitprof.ui import resources

NOTE = "Demonstration**: recorded runs."


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """The dashboard's store in a demonstration's home."""
    monkeypatch.setenv("VITPROF_HOME", str(demo.make_home()[0]))
    st.cache_resource.clear()
    yield resources.store()
    resources.manager().shutdown()
    resources.store().close()
    st.cache_resource.clear()


@pytest.mark.slow
def test_every_page_has_something_to_show(recorded: RunStore) -> None:
    at = app()
    assert NOTE in said(at)
    assert read(at.title[0].value) == recorded.run(demo.FIRST_SHOWN).name
    assert "Input-bound" in said(at)

    at = app("compare")
    chosen = [recorded.run(run_id).name for run_id in at.multiselect(key="compare-runs").value]
    assert chosen == ["Image by image, as most tutorials do", "Whole batches, made one ahead"]

    at = app("tournament", tournament=str(demo.TOURNAMENT))
    assert "Recommended" in [header.value for header in at.header]

    at = app("history")
    assert "1 to 6 of 6 runs" in said(at)


def test_its_first_run_can_be_deleted_as_all_others(recorded: RunStore) -> None:
    recorded.delete(demo.FIRST_SHOWN)
    assert app().title[0].value.startswith("Is your GPU")


def test_the_note_is_the_demonstrations_alone(store: RunStore) -> None:
    assert NOTE not in said(app())
