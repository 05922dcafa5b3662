"""Every page through AppTest: states, messages, what a setting does to the form, and what the address says."""

import tomllib
from pathlib import Path

import pytest
import streamlit as st
from streamlit import config
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import APP, LIMIT_S, add_run, address, app, metrics, read, said
from vitprof import demo
from vitprof.config import RunConfig
from vitprof.store import RunStore
from vitprof.ui import navigation, resources


def test_profile_without_runs_says_what_to_do_and_every_setting_has_help(store: RunStore) -> None:
    at = app()
    assert at.title[0].value == "Is your GPU starved by data loading?"
    assert not at.metric
    assert address(at) == {}, "defaults are not said"
    widgets = [*at.selectbox, *at.number_input, *at.checkbox, *at.text_input]
    assert widgets
    assert [w.label for w in widgets if not w.help] == []


def test_a_finished_run_from_the_url_and_the_queue_beside_it(store: RunStore) -> None:
    at = app(run=str(add_run(store, name="mine")))
    assert at.title[0].value == "mine"
    shown = metrics(at)
    assert (shown["Samples/s"], shown["Step, mean"]) == ("12,800", "10.0 ms")
    assert "50% idle" in said(at)
    assert "GPU-util" not in shown, "there is no GPU"
    assert shown["Memory, peak"] == "1.00 GiB"
    waiting = store.create_run(RunConfig(name="**other**"))
    at = app(run="1", tab="Timeline")
    assert "No NVIDIA GPU here: device figures are not available" in said(at)
    assert any(rf"Run {waiting}: \*\*other\*\*" in m.value for m in at.markdown)


def test_a_compared_run_that_is_deleted_meanwhile(store: RunStore) -> None:
    kept, deleted = add_run(store), add_run(store)
    at = app("compare")
    assert sorted(at.multiselect[0].value) == [kept, deleted]
    at.switch_page("pages/profile.py").run()
    store.delete(deleted)
    at.switch_page("pages/compare.py").run()
    assert not at.exception
    assert at.multiselect[0].value == [kept]


def test_an_unusable_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file" / "home"))
    st.cache_resource.clear()
    at = AppTest.from_file(str(APP), default_timeout=LIMIT_S).run()
    assert not at.exception
    assert "cannot write to" in at.error[0].value
    assert "\n" not in at.error[0].value
    st.cache_resource.clear()


def test_the_mark_needs_no_font() -> None:
    """An image of a page has none of its fonts: the word was drawn with a wider one, and its end was cut."""
    mark = navigation.MARK.read_text()
    assert "<text" not in mark
    assert mark.count("<path") == len("vitprof")


def test_garbage_collection_after_each_rerun_is_off() -> None:
    options = config.get_config_options()
    assert "runner.postScriptGC" in options, "a hidden option"
    given = tomllib.loads((APP.parent / ".streamlit" / "config.toml").read_text())
    assert given["runner"]["postScriptGC"] is False


def test_a_changed_setting_is_said_and_a_default_is_not_any_more(store: RunStore) -> None:
    at = app()
    at.number_input(key="set-batch_size").set_value(96).run()
    assert address(at) == {"batch_size": "96"}
    at.selectbox(key="set-strategy").set_value("slow-drive").run()
    at.number_input(key="set-slow_mb_s").set_value(2.5).run()
    at.checkbox(key="set-evaluate").set_value(True).run()
    said = {"strategy": "slow-drive", "batch_size": "96", "slow_mb_s": "2.5", "evaluate": "true"}
    assert address(at) == said
    again = app(**said)
    assert (address(again), again.number_input(key="set-slow_mb_s").value) == (said, 2.5)
    at.number_input(key="set-batch_size").set_value(128)
    at.selectbox(key="set-budget").set_value("steps").run()
    assert address(at) == {name: value for name, value in said.items() if name != "batch_size"} | {
        "steps": "200"
    }


def test_what_cannot_be_leaves_the_address_and_a_run_and_what_is_no_setting_stay(
    store: RunStore,
) -> None:
    at = app(batch_size="many", strategy="nope")
    assert "Batch size many" in said(at)
    assert address(at) == {}
    run = str(add_run(store))
    at = app(run=run, batch_size="64", embed="true")
    at.number_input(key="set-batch_size").set_value(32).run()
    assert address(at) == {"run": run, "batch_size": "32", "embed": "true"}
    at.query_params.clear()  # as a click on a page's link does
    at.switch_page("pages/strategies.py").run()
    at.switch_page("pages/profile.py").run()
    assert address(at) == {"run": run, "batch_size": "32"}, (
        "another page and back keep run and settings"
    )
    store.delete(int(run))
    at.run()
    assert f"no run {run}" in said(at)
    at.run()
    assert "run" not in address(at)


def test_a_page_with_the_query_of_another_one_goes_there_and_both_keep_theirs(
    store: RunStore,
) -> None:
    at = app(run=str(add_run(store)), batch_size="64")
    ours = address(at)
    at.query_params.clear()
    at.switch_page("pages/strategies.py").run()
    at.query_params["strategy-workers"] = "true"
    at.run()
    for (
        name,
        value,
    ) in ours.items():  # Back, and in the same moment a timer of the page that is left
        at.query_params[name] = value
    del at.query_params["strategy-workers"]
    at.run()
    assert at.title[0].value != "Strategies"
    assert address(at) == ours
    at.query_params.clear()
    at.switch_page("pages/strategies.py").run()
    assert address(at) == {"strategy-workers": "true"}


NOTE = "Demonstration**: recorded runs."


def test_every_page_of_the_demonstration_shows_something(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "6 runs" in said(at)

    recorded.delete(demo.FIRST_SHOWN)  # as all others can be
    assert app().title[0].value.startswith("Is your GPU")
