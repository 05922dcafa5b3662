"""What the address says: the run, and the settings that are not the default."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, app, said
from vitprof.store import RunStore


def query(at: AppTest) -> dict[str, str]:
    return {name: values[0] if isinstance(values, list) else values for name, values in at.query_params.items()}


def test_defaults_are_not_said(store: RunStore) -> None:
    assert query(app()) == {}


def test_a_changed_setting_is_said_and_a_default_is_not_any_more(store: RunStore) -> None:
    at = app()
    at.number_input(key="set-batch_size").set_value(96).run()
    assert query(at) == {"batch_size": "96"}
    at.selectbox(key="set-strategy").set_value("slow-drive").run()
    at.number_input(key="set-slow_mb_s").set_value(2.5).run()
    at.checkbox(key="set-evaluate").set_value(True).run()
    said = {"strategy": "slow-drive", "batch_size": "96", "slow_mb_s": "2.5", "evaluate": "true"}
    assert query(at) == said
    again = app(**said)
    assert (query(again), again.number_input(key="set-slow_mb_s").value) == (said, 2.5)
    at.number_input(key="set-batch_size").set_value(128).run()
    assert "batch_size" not in query(at)


@pytest.mark.parametrize(("given", "kept"), [({"seconds": "20"}, {}), ({"epochs": "1"}, {"epochs": "1"})])
def test_the_budget(store: RunStore, given: dict[str, str], kept: dict[str, str]) -> None:
    at = app(**given)
    assert query(at) == kept
    at.selectbox(key="set-budget").set_value("steps").run()
    assert query(at) == {"steps": "200"}


def test_a_run_and_what_is_not_a_setting_stay(store: RunStore) -> None:
    run = str(add_run(store))
    at = app(run=run, batch_size="64", embed="true")
    at.number_input(key="set-batch_size").set_value(32).run()
    assert query(at) == {"run": run, "batch_size": "32", "embed": "true"}


def test_what_cannot_be_is_said_once_and_leaves_the_address(store: RunStore) -> None:
    at = app(batch_size="many", strategy="nope")
    assert "Batch size many" in said(at)
    assert query(at) == {}


def test_another_page_and_back_keep_run_and_settings(store: RunStore) -> None:
    run = str(add_run(store))
    at = app(run=run, batch_size="64")
    at.query_params.clear()  # as a click on a page's link does
    at.switch_page("pages/strategies.py").run()
    at.switch_page("pages/profile.py").run()
    assert query(at) == {"run": run, "batch_size": "64"}
    store.delete(int(run))
    at.run()
    assert f"no run {run}" in said(at)
    at.run()
    assert "run" not in query(at)
