"""The Compare page: warnings, verdicts, idle time by cause, and which runs it offers."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from ui.dashboard import add_run, app, said
from vitprof.jobs.headroom import GROUP as HEADROOM
from vitprof.jobs.prediction import CHECK
from vitprof.jobs.prediction import GROUP as PREDICTION
from vitprof.store import RunStore


def compare(*ids: int) -> AppTest:
    return app("compare", runs=",".join(map(str, ids)))


def drawn(at: AppTest, key: str) -> bool:
    return any(key in chart.proto.id for chart in at.get("plotly_chart"))


def test_verdicts_stand_in_the_table(store: RunStore) -> None:
    starved, fed = add_run(store), add_run(store, wait_s=0.0001, strategy="memory", device="simulated:5,0")
    verdicts = dict(zip((starved, fed), compare(starved, fed).dataframe[0].value["Verdict"], strict=True))
    assert verdicts == {starved: "input-bound", fed: "not input-bound, simulated"}


def test_idle_time_by_cause(store: RunStore) -> None:
    trained, loaded = add_run(store), add_run(store, loader_only=True)
    assert drawn(compare(trained, trained), "compare-idle")
    assert not drawn(compare(loaded), "compare-idle")


def test_a_simulated_device_has_no_loss(store: RunStore) -> None:
    real, simulated = add_run(store), add_run(store, device="simulated:5,0")
    assert drawn(compare(real, simulated), "compare-loss")
    at = compare(simulated)
    assert not drawn(at, "compare-loss")
    assert "A simulated device computes no loss" in said(at)


def test_runs_alike_but_for_the_strategy_compare_without_a_word(store: RunStore) -> None:
    at = compare(add_run(store), add_run(store, strategy="memory", wait_s=0.001))
    assert not at.warning


def test_a_few_warnings_are_told_and_many_are_a_count(store: RunStore) -> None:
    one, simulated = add_run(store), add_run(store, device="simulated:5,0")
    at = compare(one, simulated)
    assert 1 <= len(at.warning) <= 3
    unlike = add_run(store, batch_size=64, device="simulated:5,0", seed=7, precision="bf16", model="ti/16", n=30)
    at = compare(one, simulated, unlike)
    assert not at.warning
    (box,) = [e.label for e in at.expander if "warnings" in e.label]
    assert int(box.split()[1]) > 3
    assert "simulated" in said(at)


def test_runs_made_for_another_are_offered_when_asked_for(store: RunStore) -> None:
    own = add_run(store)
    anchor = add_run(store, group_key=f"{HEADROOM}{own}", role="A")
    check = add_run(store, group_key=f"{PREDICTION}{own}", role=CHECK, strategy="memory")
    at = app("compare")
    assert at.multiselect[0].value == [own, check]
    offered = [text.partition(":")[0] for text in at.multiselect[0].options]
    assert sorted(map(int, offered)) == [own, check]
    at.checkbox(key="compare-helpers").check().run()
    offered = [text.partition(":")[0] for text in at.multiselect[0].options]
    assert sorted(map(int, offered)) == [own, anchor, check]
    assert at.multiselect[0].value == [own, check]
