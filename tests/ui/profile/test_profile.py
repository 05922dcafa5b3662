"""What the Profile page says about a run that has ended, from the verdict to the account."""

import dataclasses
import math
import re
from typing import get_args
from unittest.mock import Mock

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, app, charts, click, metrics, read, said
from vitprof.analysis.timing.compute_parts import ComputePart, DividedCompute, divided_figures
from vitprof.analysis.verdict.headroom import ANCHOR_ROLES
from vitprof.config import RunConfig
from vitprof.errors import JobError
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Kind
from vitprof.store import RunGroup, RunStore
from vitprof.ui import resources
from vitprof.ui.notifications import TO_SAY
from vitprof.ui.profile.settings import TAKEN_OVER
from vitprof.ui.profile.verdict_card import LOOKS

CHARTS: dict[str, set[str]] = {
    "Answer": {"device-time", "waterfall"},
    "Timeline": {"live-gaps", "timeline", "step-chain", "live-batches", "live-loss", "live-cpu"},
    "Loading": {"loading-bar"},
    "Export": {"talk-1"},
}
"""Tab -> its charts, of a run whose headroom was measured."""


PARTS = (
    ComputePart("forward", 0.41, 0.005),
    ComputePart("backward", 0.46, 0.0057),
    ComputePart("optimizer", 0.09, 0.0011),
    ComputePart("other", 0.04, 0.0005),
)


def said_in_lines(at: AppTest) -> str:
    """The page's text without empty lines."""
    return re.sub("\n\n+", "\n", said(at))


def buttons(at: AppTest) -> set[str]:
    return {button.key for button in at.button}


def test_the_parts_of_compute_are_named_where_they_were_measured(store: RunStore) -> None:
    run_id = add_run(store)
    assert "ompute of a step" not in said(app(run=str(run_id)))
    summary = store.run(run_id).summary or RunSummary()
    parts = divided_figures(DividedCompute(35, 0.0123, PARTS)) | {"n_divided_steps": 35}
    store.update_run(run_id, summary=dataclasses.replace(summary, **parts))
    line = (
        "Compute of a step (median 12.3 ms): forward 41%, backward 46%, optimizer 9.0%, rest 4.0%, "
        "in 35 steps whose parts are known."
    )
    assert line in said(app(run=str(run_id)))


def test_the_gpu_of_a_run_is_named_with_its_sm_activity_and_what_is_not_available(
    store: RunStore,
) -> None:
    run_id = add_run(store)
    card = {
        "device": "cuda:1",
        "device_name": "NVIDIA A100",
        "gpu_uuid": "MIG-5115ce00-d72c-4106-c12f-20bd9faed9f6",
    }
    card |= {"gpu_not_available": "GPU-util, PCIe (NVML: Not Supported)"}
    summary, reason = store.run(run_id).summary or RunSummary(), "this GPU has no GPM counters"
    for util, active, occupancy, shown, said_of_it in (
        (41.0, 23.0, 9.0, ("41%", "SM activity 23%"), "SM activity: 23%, occupancy 9.0%."),
        (
            41.0,
            math.nan,
            math.nan,
            ("41%", "SM activity n/a"),
            f"SM activity: not available: {reason}.",
        ),
        # of a slice in MIG mode NVML counts the one and not the other
        (math.nan, 23.0, 9.0, ("n/a", "SM activity 23%"), "SM activity: 23%, occupancy 9.0%."),
    ):
        known = {
            "gpu_util_pct_mean": util,
            "gpu_sm_active_pct_mean": active,
            "gpu_sm_occupancy_pct_mean": occupancy,
        }
        unknown = {"sm_activity_not_available": reason} if math.isnan(active) else {}
        store.update_run(
            run_id, summary=dataclasses.replace(summary, **known), environment=card | unknown
        )
        at = app(run=str(run_id), tab="Timeline")
        (tile,) = (tile for tile in at.metric if tile.label == "GPU-util")
        assert (tile.value, tile.delta) == shown
        assert said_of_it in read(tile.proto.help)
    assert "on NVIDIA A100 (cuda:1, MIG-5115ce00)" in said(at)
    assert "Not available for this GPU: GPU-util, PCIe (NVML: Not Supported)." in said(at)


def test_each_tab_draws_its_own_charts_and_no_other(store: RunStore) -> None:
    run_id = add_run(store, strategy="workers", workers=1)
    add_anchors(store, run_id)
    for tab, keys in CHARTS.items():
        at = app(run=str(run_id), tab=tab)
        assert charts(at).keys() == keys, tab
        assert ":material/hourglass_top: **Input-bound.** " in said(at)
        assert "measured, with free data" in said(at)
        assert len(at.metric) >= 3
    assert LOOKS.keys() == set(get_args(Kind))
    assert "import torch" in at.code[0].value
    assert {"download-Bundle", "download-Report"} <= {
        b.proto.id.split("-", 2)[2] for b in at.get("download_button")
    }
    at = app(run=str(run_id), tab="Loading")
    for status in ("running", "done"):
        store.update_run(run_id, status=status)
        at.run()
        assert ("loading-bar" in charts(at)) is (status == "done"), (
            "the tab of before, once the run has ended"
        )


def test_a_step_that_is_asked_for_shows_its_figures_and_its_chain(store: RunStore) -> None:
    run_id = add_run(store, n=100)
    at = app(run=str(run_id), tab="Timeline")
    assert "Step 5\n" in said(at)
    assert "the largest gap" not in said(at), "they are all alike"
    at.number_input(key=f"step-{run_id}").set_value(70).run()
    assert "Step 70\n" in said(at)
    shown = {m.label: (m.value, m.delta) for m in at.metric}
    assert shown["Idle gap"] == ("5.00 ms", "median 5.00 ms")
    assert "The loop itself made this batch in 5.00 ms: reading 3.00 ms, decoding 2.00 ms." in said(
        at
    )
    assert "The loop waited 5.00 ms for it." in said(at)
    for words, step in (("Later", 99), ("Largest gap", 5), ("Earlier", 0)):
        click(at, f"window-{words}")
        assert at.number_input(key=f"step-{run_id}").value == step


def test_a_run_that_is_opened_brings_its_settings_along(store: RunStore) -> None:
    run_id, other = (add_run(store, name="mine", batch_size=size, n=50) for size in (96, 32))
    at = app(run=str(run_id))
    assert (
        at.number_input(key="set-batch_size").value,
        at.number_input(key="set-steps").value,
    ) == (96, 50)
    assert at.text_input(key="set-name").value == "", "the name is that run's"
    at.number_input(key="set-batch_size").set_value(64).run()
    assert at.number_input(key="set-batch_size").value == 64, "only once"
    at.query_params["run"] = str(other)
    at.run()
    assert at.number_input(key="set-batch_size").value == 32
    at = app(run=str(run_id), batch_size="16")
    assert at.number_input(key="set-batch_size").value == 16, "a link says what was in the sidebar"


def test_run_again_starts_the_same_settings(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = add_run(store, batch_size=96, n=50)
    submit: list[RunConfig] = []
    started = (
        type(resources.manager()),
        "submit",
        lambda _, config: submit.append(config) or store.create_run(config),
    )
    monkeypatch.setattr(*started)
    at = app(run=str(run_id), batch_size="64", tab="Export")
    assert at.session_state["tab"] == "Export"
    click(at, "run-again")
    assert (submit, at.query_params["run"]) == ([store.run(run_id).config], str(run_id + 1))
    assert at.session_state["tab"] == "Answer", "whatever tab was open"
    assert at.number_input(key="set-batch_size").value == 96, (
        "what goes on is what the sidebar says"
    )
    assert "run-again" not in buttons(at)


def test_advice_goes_into_the_sidebar_as_this_runs_job(store: RunStore) -> None:
    at = app(run=str(add_run(store, batch_size=96, n=50)), batch_size="64")
    click(at, "use-advice-0")
    assert at.selectbox(key="set-strategy").value != "per-sample"
    assert (
        at.number_input(key="set-batch_size").value,
        at.number_input(key="set-steps").value,
    ) == (96, 50)
    assert at.session_state[TO_SAY][0][0] == TAKEN_OVER
    assert not at.button(key="run-button").disabled


def test_a_stored_verdict_is_shown_as_it_is(store: RunStore) -> None:
    run_id = add_run(store)
    at = app(run=str(run_id))
    assert "**Input-bound.**" in said(at)
    assert "What recording took is not known for these steps" in said(at)
    other = {
        "kind": "not input-bound",
        "sentence": "Not input-bound: as it was stored.",
        "simulated": False,
    }
    store.update_run(run_id, verdict=other)
    at.run()
    assert "As it was stored." in said(at)
    store.update_run(run_id, verdict={"shares": [{"of": "another version"}]})
    at.run()
    assert "**Input-bound.**" in said(at), "one that cannot be read is worked out anew"


def test_what_is_simulated_says_so(store: RunStore) -> None:
    at = app(run=str(add_run(store, device="simulated:4,0")))
    marks = {m.label: m.delta for m in at.metric}
    assert marks["GPU-util"] == marks["Samples/s"] == "simulated"
    assert "Why does the device wait? (simulated)" in said(at)
    at = app(run=str(add_run(store, launch_idle_s=0.004)))
    assert not any(m.delta for m in at.metric), "no step says what of its wait was exposed"
    assert "It waited another 40% (40% to 40%) for kernel launches inside its steps." in said(at)


def test_a_loader_only_run_has_no_device_to_talk_about(store: RunStore) -> None:
    at = app(run=str(add_run(store, loader_only=True)))
    text = said(at)
    assert "Why does the device wait?" not in text
    assert "The loader alone delivers **12,800 samples/s**" in text
    assert "No model was trained, so no device could wait." in text
    assert set(metrics(at)) == {"Samples/s", "Memory, peak"}
    assert "measure-headroom" not in buttons(at), "there is no training to speed up"
    assert "loading-bar" in charts(app(run="1", tab="Loading"))
    at = app(run="1", tab="Timeline")
    assert charts(at).keys() == {"step-chain", "live-batches", "live-cpu"}
    assert set(metrics(at)) == {"Samples/s", "Memory, peak", "Data wait", "Step"}
    assert "gap" not in said(at)


def test_a_run_that_did_not_finish_has_a_verdict_on_what_there_is(store: RunStore) -> None:
    run_id = add_run(store, loader_times=False)
    for status in ("stopped", "failed"):
        store.update_run(run_id, status=status, error="the reason")
        at = app(run=str(run_id), tab="Loading")
        assert "**Input-bound.**" in said(at)
        assert any("the reason" in shown.value for shown in [*at.error, *at.warning])
    assert ("was off in this run" in said(at), "loading-bar" in charts(at)) == (True, False)


def test_a_run_of_few_steps_is_inconclusive_and_one_without_says_only_why(store: RunStore) -> None:
    at = app(run=str(add_run(store, n=15)))
    assert ":material/help: **Inconclusive.**" in said(at)
    assert not [key for key in buttons(at) if key.startswith("use-advice")]
    failed = add_run(store, n=0, status="failed")
    store.update_run(
        failed, error="train-images-idx3-ubyte is damaged; delete it and it is made again"
    )
    at = app(run=str(failed))
    assert any("train-images-idx3-ubyte is damaged" in read(e.value) for e in at.error)
    assert any("ended before its first step" in shown.value for shown in at.info)
    assert not charts(at)
    assert not metrics(at)


def add_anchors(store: RunStore, run_id: int) -> None:
    for role, wait_s in zip(ANCHOR_ROLES[:3], (0.0001, 0.0002, 0.005), strict=True):
        add_run(store, wait_s=wait_s, group_key=RunGroup("headroom", run_id).key, role=role)


def test_measured_headroom_is_found_again_and_changes_the_verdict(store: RunStore) -> None:
    run_id = add_run(store)
    assert "up to 2.00x\nestimated, with free data" in said_in_lines(app(run=str(run_id)))
    add_anchors(store, run_id)
    at = app(run=str(run_id))
    assert "waterfall" in charts(at)
    assert "With free data the steps of this job would run 1.96 times as fast" in said(at)
    assert "up to 1.96x\nmeasured, with free data" in said_in_lines(at)
    (figures,) = (m.value for m in at.markdown if m.value.startswith("| "))
    assert len(figures.splitlines()) == 2 + 3
    assert "measure-headroom" in buttons(at)
    more = add_run(store, n=0, group_key=RunGroup("headroom", run_id).key, role="D")
    store.update_run(more, status="running", stage="training")  # in another program
    at.run()
    assert "measure-headroom" not in buttons(at)
    assert any("anchor D" in str(bar.proto) for bar in at.get("progress"))


def test_what_cannot_be_queued_is_one_line(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = app(run=str(add_run(store)))

    refuse = Mock(side_effect=JobError("vitprof is shutting down; no job was started"))
    monkeypatch.setattr(type(resources.manager()), "submit", refuse)
    for key in ("measure-headroom", "run-again", "run-button"):
        click(at, key)
        assert any("shutting down" in shown.value for shown in at.error)


def test_runs_made_for_another_are_one_line_of_the_queue(store: RunStore) -> None:
    profiled = add_run(store, name="profiled")  # run 1, as tournament 1 has its number
    for role in ANCHOR_ROLES[:3]:
        add_run(
            store, n=0, status="queued", group_key=RunGroup("headroom", profiled).key, role=role
        )
    role = "memory/b64/w-/as-is#2"
    trial = add_run(store, n=0, status="running", group_key="tournament:1", role=role)
    at = app()
    assert [t.value for t in at.title] == ["Is your GPU starved by data loading?"], (
        "no run of a stranger"
    )
    assert f"Headroom of run {profiled}: A (queued, cpu), 3 to go" in said(at)
    assert "Tournament 1: memory, batch 64 (running, cpu)" in said(at)
    assert len([key for key in buttons(at) if key.startswith("show-")]) == 2
    assert "stop-" not in "".join(b.key or "" for b in at.button), "its own page stops it"
    assert "Made for tournament 1: memory, batch 64" in said(app(run=str(trial)))


def test_a_run_of_a_search_by_an_earlier_version_is_shown(store: RunStore) -> None:
    key = "autotune:411-1790000000000000000"
    run_id = add_run(store, group_key=key, role="batch 64, 2 workers#1")
    assert f"Made for {key}, which this version of vitprof does not know" in said(
        app(run=str(run_id))
    )
