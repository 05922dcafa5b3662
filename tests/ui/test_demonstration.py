"""Every page of the demonstration has something to show; app.py, around all of them, says what it is."""

import pytest
import streamlit as st

from tests.ui.dashboard import app, read, said
from vitprof import demo
from vitprof.store import RunStore
from vitprof.ui import resources

NOTE = "Demonstration**: recorded runs."


@pytest.mark.slow
def test_every_page_has_something_to_show(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NOTE not in said(app())
    monkeypatch.setenv("VITPROF_HOME", str(demo.make_home()[0]))
    resources.manager().shutdown()
    store.close()
    st.cache_resource.clear()
    recorded = resources.store()
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

    recorded.delete(demo.FIRST_SHOWN)  # as all others can be
    assert app().title[0].value.startswith("Is your GPU")
