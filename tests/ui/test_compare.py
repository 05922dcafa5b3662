"""The Compare page: which runs it offers, what stands in its address, warnings, table, and each of its sections."""

import csv
import dataclasses
import io
import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, address, app, charts, kept_in_url, said
from tests.ui.tournaments import DEVICE, KEYS, add_tournament
from vitprof import formats
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.analysis.tournament.recommend import recommend
from vitprof.analysis.verdict.rendering import render
from vitprof.experiments.tournament import tournament_view
from vitprof.experiments.tournament.tournament_runner import TournamentRunners
from vitprof.export import tables
from vitprof.formats import percent
from vitprof.recording.columns import STEP_COLUMNS, RunSummary
from vitprof.recording.verdict import NoVerdict, Verdict
from vitprof.store import RunGroup, RunQuery, RunStore, read_role
from vitprof.store.tournaments import list_tournaments
from vitprof.ui import compare as compare_page
from vitprof.ui import findings
from vitprof.ui.compare_answer import ALTERNATE
from vitprof.ui.compare_sections import METRICS


def compare(*ids: int, **query: str) -> AppTest:
    return app("compare", runs=",".join(map(str, ids)), **query)


def table(at: AppTest) -> Any:
    return at.dataframe[0].value


def speed(store: RunStore, run_id: int, per_s: float, half: float = 1.0) -> int:
    """Give a run this throughput and interval."""
    ends = {"samples_per_s_low": per_s - half, "samples_per_s_high": per_s + half}
    store.update_run(run_id, summary=RunSummary(n_steps=40, samples_per_s=per_s, epoch_s=2, **ends))
    return run_id


def test_a_row_for_each_chosen_run_with_its_verdict(store: RunStore) -> None:
    names = ["=cmd()", "<b>bold</b>"]
    ids = [add_run(store, name=name) for name in names]
    at = app("compare")
    assert sorted(at.multiselect[0].value) == ids
    assert sorted(table(at)["Run"]) == [f"{i}: per-sample" for i in ids]
    assert sorted(table(at)["Name"]) == sorted(names)
    assert list(table(at))[:3] == ["Run", "Samples/s", "Speed-up (x)"], "a phone has room for these"
    at.multiselect[0].set_value([]).run()
    assert "Choose at least one run" in at.info[0].value
    assert address(at).get("runs") == "", "so that a reload shows the same"
    starved, fed = (
        add_run(store),
        add_run(store, wait_s=0.0001, strategy="memory", device="simulated:5,0"),
    )
    verdicts = dict(zip((starved, fed), table(compare(starved, fed))["Verdict"], strict=True))
    assert verdicts == {starved: "input-bound", fed: "not input-bound"}


def test_figures_are_numbers_and_what_is_not_available_says_so(store: RunStore) -> None:
    a, b = speed(store, add_run(store), 12_345.678), speed(store, add_run(store), 998.4)
    at = compare(a, b)
    frame = table(at)
    assert (frame["Samples/s"].tolist(), frame["Speed-up (x)"].tolist()) == (
        [12_300, 998],
        [12.4, 1],
    )
    at = compare(a, b, more="true")
    frame = table(at)
    texts = {name for name in frame if frame[name].dtype.kind not in "fi"}
    assert texts == {"Run", "Name", "Verdict", "95% range", "vs baseline", "Epoch is"}
    assert "GPU-util (%)" not in frame
    assert "Not available for these runs: Device idle, any reason, Data wait" in said(at)
    near, unknown = speed(store, add_run(store), 1001.4), add_run(store)
    at = compare(b, near, unknown, baseline=str(b), more="true")
    assert not at.warning, "they are alike"
    assert at.dataframe[0].proto.placeholder == "n/a"
    assert table(at)["Speed-up (x)"].tolist()[:2] == [1, 1.003]
    assert table(at)["Epoch is"].tolist() == ["extrapolated", "extrapolated", "n/a"]
    assert "95% range" not in table(compare(unknown, add_run(store)))


def test_sm_activity_has_columns_and_its_absence_a_reason(store: RunStore) -> None:
    known, old = add_run(store), add_run(store)
    figures = {
        "gpu_util_pct_mean": 90.0,
        "gpu_sm_active_pct_mean": 23.4,
        "gpu_sm_occupancy_pct_mean": 8.0,
    }
    summary = store.run(known).summary or RunSummary()
    store.update_run(known, summary=dataclasses.replace(summary, **figures))
    store.update_run(old, environment={"sm_activity_not_available": "this GPU has no GPM counters"})
    at = compare(known, old, more="true")
    rows = dict(zip(table(at)["Run"], table(at)["SM activity (%)"], strict=True))
    assert rows[f"{known}: per-sample"] == 23.4
    assert math.isnan(rows[f"{old}: per-sample"])
    assert "SM occupancy (%)" in table(at)
    assert f"SM activity of run {old} is not available: this GPU has no GPM counters." in said(at)


def test_speed_ups_are_against_the_slowest_or_the_pinned_baseline_and_ties_are_said(
    store: RunStore,
) -> None:
    fast, middle, slow = (
        speed(store, add_run(store), s, h) for s, h in ((200.0, 2.0), (101.0, 3.0), (100.0, 3.0))
    )
    at = compare(fast, middle, slow)
    assert table(at)["vs baseline"].tolist() == ["faster", "undecided", "baseline"]
    assert table(at)["95% range"].tolist() == ["1.94 to 2.07", "0.968 to 1.054", ""]
    at.selectbox(key="compare-baseline").set_value(fast).run()
    assert table(at)["vs baseline"].tolist() == ["baseline", "slower", "slower"]
    assert address(at).get("baseline") == str(fast)
    assert (
        table(compare(fast, middle, slow, baseline=str(middle)))["vs baseline"].tolist()[1]
        == "baseline"
    )
    assert table(compare(fast, slow, baseline=str(middle)))["vs baseline"].tolist() == [
        "faster",
        "baseline",
    ]


FIRST = [
    "Run",
    "Samples/s",
    "Speed-up (x)",
    "95% range",
    "vs baseline",
    "Idle (%)",
    "Verdict",
    "Name",
]


def test_the_first_thing_is_which_run_is_faster_and_how_far_to_trust_it(store: RunStore) -> None:
    slow = speed(store, add_run(store), 1000.0, 10.0)
    fast = speed(store, add_run(store, strategy="memory", wait_s=0.0005), 3300.0, 20.0)
    at = compare(slow, fast)
    assert at.header[0].value.replace("\\", "") == (
        f"Run {fast} is 3.30x faster than run {slow} (95%: 3.26 to 3.34)."
    )
    assert "Single runs, one after the other" in said(at)
    assert list(table(at)) == FIRST, "they fit a window of 1366 px"
    assert [b.label for b in at.button if b.label == ALTERNATE]
    three = compare(slow, fast, speed(store, add_run(store, strategy="pt"), 2000.0, 10.0))
    assert f"Run {fast} is 3.30x faster than run {slow}" in said(three).replace("\\", "")
    assert "compare-difference" not in charts(three), "that is of two runs"

    busy = speed(store, add_run(store, strategy="memory"), 3300.0, 20.0)
    store.update_run(busy, facts={"n_beside": 1})
    at = compare(slow, busy)
    assert f"Run {busy} is 3.30x faster than run {slow}" in said(at).replace("\\", "")
    assert "Other programs ran" in said(at)
    assert table(at)["vs baseline"].tolist() == ["baseline", "not firm"]

    other_data = speed(store, add_run(store, dataset="photos"), 9000.0, 10.0)
    at = compare(slow, other_data)
    assert "are not alike" in at.header[0].value
    assert "9.00x" not in said(at), "no ratio passes for a gain"
    assert "compare-difference" not in charts(at)
    slower_still = speed(store, add_run(store, dataset="photos"), 10.0, 0.1)
    mixed = compare(slow, fast, slower_still)
    assert f"Run {fast} is 3.30x faster than run {slow}" in said(mixed).replace("\\", "")
    assert table(mixed)["vs baseline"].tolist() == ["baseline", "faster", "not comparable"]


def test_the_bars_are_the_causes_of_the_difference(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = add_run(store, wait_s=0.005), add_run(store, strategy="memory", wait_s=0.001)
    at = compare(a, b)
    (bars,) = charts(at)["compare-difference"]["figure"]["data"]
    assert "Where does the difference come from?" in [h.value for h in at.header]
    assert list(bars["y"]) == ["data wait<br>−4.00 ms", "compute<br>0 ms"]
    assert f"A step takes 6.00 ms in run {b} and 10.0 ms in run {a}: 4.00 ms less." in said(at)
    half = add_run(store)
    mean = findings.mean_step_of(a)
    assert mean is not None
    monkeypatch.setattr(
        findings,
        "mean_step_of",
        lambda run_id: dataclasses.replace(mean, samples=64.0) if run_id == half else mean,
    )
    assert f"A sample takes 156 µs in run {half} and 78.1 µs in run {a}" in said(compare(a, half))


def test_the_best_proof_is_the_answer_and_not_the_newest(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = {}
    monkeypatch.setattr(tournament_view, "others_of", lambda _, run_id: cores.get(run_id, 0.1))
    waits = {"per-sample": 0.005, "memory": 0.0005}
    quiet = add_tournament(store, waits, rounds=3)
    in_quiet = {run.id for run in store.runs()}
    add_tournament(store, waits, rounds=3)  # the newest, during which other programs ran
    cores |= {run.id: 1.2 for run in store.runs() if run.id not in in_quiet}
    add_tournament(store, {"per-sample": 0.005, "tensordataset": 0.0001}, rounds=3)
    slow = speed(store, add_run(store, device=DEVICE), 1000.0)
    fast = speed(store, add_run(store, strategy="memory", device=DEVICE), 5000.0)
    at = compare(slow, fast)
    assert f"Run {fast} is 1.8" in said(at).replace("\\", ""), "the proof's ratio"
    assert "Ran alternately on a quiet machine" in said(at)
    assert f"Tournament {quiet} ran the settings of both in 3 rounds." in said(at)
    assert f"Of these two runs alone, run {fast} was 5.00x as fast as run {slow}." in said(at)
    assert not [b for b in at.button if b.label == ALTERNATE], "it is proven"
    elsewhere = speed(store, add_run(store, strategy="memory", batch_size=64, device=DEVICE), 5e3)
    assert "Single runs" in said(compare(slow, elsewhere)), "another batch size is another setting"


def test_what_their_tournament_recommends_comes_before_what_one_run_shows(store: RunStore) -> None:
    waits = {"per-sample": 0.02, "memory": 0.001, "tensordataset": 0.001}
    number = add_tournament(store, waits, rounds=3)
    view = tournament_view.TournamentView(store, number)
    best = recommend(view.board())
    assert best is not None
    assert best.recommended is not None
    (equal,) = best.equals
    of_key = {
        read_role(run.role)[0]: run.id for run in store.runs(group_key=f"tournament:{number}")
    }
    slow, chosen, lucky = of_key[KEYS["per-sample"]], of_key[best.recommended], of_key[equal]
    summary = store.run(lucky).summary
    assert summary is not None
    faster = dataclasses.replace(summary, samples_per_s=1.1 * summary.samples_per_s)
    store.update_run(lucky, summary=faster)
    at = compare(slow, lucky, chosen, baseline=str(slow))
    text = said(at).replace("\\", "")
    assert f"Run {chosen} is 4.2" in text
    setting = key_in_words(best.recommended)
    assert f"Tournament {number} recommends the setting of run {chosen}: {setting}." in text
    assert f"Run {lucky} is as fast, within 5%." in text
    row = view.board().row(best.recommended)
    assert row is not None
    figure = formats.number(row.samples_per_s)
    assert f"that of run {chosen} makes {figure} samples/s" in text, "as the tournament has it"
    assert "none of these runs has that setting" in said(compare(slow, lucky, baseline=str(slow)))


def test_the_names_of_a_few_runs_are_all_in_sight(store: RunStore) -> None:
    ids = [add_run(store) for _ in range(compare_page.MOST_IN_SIGHT + 1)]
    assert compare(*ids[:4]).multiselect[0].proto.wrap
    assert not compare(*ids).multiselect[0].proto.wrap, "many would fill the screen"


def test_one_idle_figure_and_one_word_everywhere(store: RunStore) -> None:
    """History, Compare, the list of the terminal and the CSV say what the run's own page does."""
    starved = NoVerdict("too_few_steps", n_steps=18, n_steady=15, needed=20, idle_frac=0.937)
    made = {
        add_run(store, n=18): Verdict(
            kind="inconclusive", device="cpu", why_none=starved, simulated=False
        ),
        add_run(store): Verdict(
            kind="launch-bound", device="cpu", idle_frac=0.059, paced_frac=0.727, simulated=False
        ),
    }
    for run_id, verdict in made.items():
        store.update_run(run_id, verdict=verdict.to_dict())
    for run_id, word, share in zip(
        made, ("almost certainly starved", "launch-bound"), (94.0, 73.0), strict=True
    ):
        history = app("history").dataframe[0].value.set_index("run").loc[run_id]
        assert (list(history["verdict"]), history["idle"]) == ([word], share)
        at = compare(*made)
        rows = table(at).set_index("Run")
        row = rows.loc[f"{run_id}: per-sample"]
        assert (row["Verdict"], row["Idle (%)"]) == (word, share)
        assert render(store.run(run_id).verdict).headline.lower() == word
        (in_csv,) = csv.DictReader(io.StringIO(tables.summary_csv([store.run(run_id)])))
        assert (in_csv["verdict"], round(100 * float(in_csv["idle_frac"]))) == (word, share)
        (listed,) = store.list_runs(RunQuery(text=f"#{run_id}"), limit=2)
        assert (listed.verdict_kind, percent(listed.idle_frac)) == (word, f"{share:.0f}%")


def offered(at: AppTest) -> list[int]:
    return [int(text.partition(":")[0]) for text in at.multiselect[0].options]


def test_the_database_searches_and_the_list_stays_short(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_page, "OFFERED", 2)
    old = add_run(store, name="the old one")
    newer = [add_run(store) for _ in range(3)]
    anchor = add_run(store, group_key=RunGroup("headroom", old).key, role="A")
    at = app("compare")
    assert sorted(offered(at)) == newer[1:]
    assert "newest 2 of 4 runs" in said(at)
    at.text_input(key="compare-find").set_value("old").run()
    assert offered(at) == [*newer[1:], old], "what is chosen stays"
    at.multiselect[0].set_value([newer[1], old]).run()
    at.text_input(key="compare-find").set_value("").run()
    assert at.multiselect[0].value == [newer[1], old]
    at.text_input(key="compare-find").set_value("no-such").run()
    assert "No finished run has “no-such”" in said(at)
    assert at.multiselect[0].value == [newer[1], old]
    at.text_input(key="compare-find").set_value("").run()
    at.checkbox(key="compare-helpers").check().run()
    assert anchor in offered(at), "a run made for another is offered when asked for"
    assert compare(old, anchor).multiselect[0].value == [old, anchor], "a link may name any run"


def test_named_runs_that_cannot_be_compared_are_told(store: RunStore) -> None:
    failed = add_run(store, n=0, status="failed")
    assert "No finished runs yet" in app("compare").info[0].value
    fine, live = add_run(store), add_run(store, status="running")
    at = compare(fine, live, failed, 98, 99)
    assert at.multiselect[0].value == [fine]
    for sentence in (
        f"Still running; compare when it has ended: run {live}.",
        f"Without steps, so there is nothing to compare: run {failed}.",
        "Not in this store (deleted, or from another machine): runs 98, 99.",
    ):
        assert sentence in said(at)
    assert "Choose a second run" in said(at)
    assert (len(at.warning), len(at.selectbox)) == (1, 0)
    assert address(at).get("runs") == f"{fine},{live},{failed},98,99", "a reload says the same"
    at.multiselect[0].set_value([]).run()
    assert not at.warning
    assert address(at).get("runs") == ""


def test_an_address_of_any_kind(store: RunStore) -> None:
    run_id, wrong = add_run(store), "x,1,,1,-3,1e9,99999999999999"
    at = app(
        "compare",
        runs=wrong,
        show="nothing",
        metric="<b>",
        baseline="none",
        align="?",
        unit="",
        warmup="2",
    )
    assert (kept_in_url(at)["show"], at.multiselect[0].value) == ("device", [run_id])
    assert "compare-shares" in charts(at)
    assert "compare-shares" in charts(app("compare", runs="1", show="", warmup=""))


def test_every_choice_stands_in_the_address_and_comes_back(store: RunStore) -> None:
    a, b = add_run(store), add_run(store, strategy="memory")
    at = compare(a, b)
    assert {
        n for n in ("show", "metric", "align", "warmup", "baseline") if address(at).get(n)
    } == set()
    at.segmented_control(key="show").set_value("steps").run()
    assert "Left out: 5 warm-up steps" in said(at)
    at.segmented_control(key="metric").set_value("h2d")
    at.segmented_control(key="align").set_value("time")
    at.toggle(key="warmup").set_value(True).run()
    assert "Left out" not in said(at)
    assert address(at).get("runs") == f"{a},{b}"
    wanted = {"show": "steps", "metric": "h2d", "align": "time", "warmup": True, "more": False}
    assert kept_in_url(at) == wanted
    again = compare(a, b, show="Every step", metric="H2D", align="Time", warmup="true")
    assert kept_in_url(again) == wanted
    assert "compare-steps" in charts(again)
    assert {metric.column for metric in METRICS.values()} < set(STEP_COLUMNS)


def test_back_from_another_page_only_what_is_shown_is_made(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = add_run(store), add_run(store, strategy="memory")
    add_run(store)
    for hidden in (
        "ui.findings.device_time_of",
        "ui.findings.line_of",
        "charts.breakdown.waterfall",
    ):
        monkeypatch.delattr(f"vitprof.{hidden}")
    at = compare(a, b, show="Data waits", baseline=str(b))
    at.switch_page("pages/profile.py").run()
    at.query_params.clear()
    at.switch_page("pages/compare.py").run()
    assert at.multiselect[0].value == [a, b]
    assert charts(at).keys() == {"compare-difference", "compare-waits"}
    assert at.selectbox(key="compare-baseline").value == b


def test_a_few_warnings_are_told_and_many_are_a_count(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, simulated = add_run(store), add_run(store, device="simulated:5,0")
    assert not compare(one, add_run(store, strategy="memory", wait_s=0.001)).warning, (
        "they differ in the strategy only"
    )
    at = compare(one, simulated)
    assert 1 <= len(at.warning) <= 3
    assert set(table(at)["vs baseline"]) == {"baseline", "not comparable"}
    assert not [b for b in at.button if b.label == ALTERNATE], (
        "run alternately they would differ as well"
    )
    store.update_run(disturbed := add_run(store, strategy="memory"), facts={"n_beside": 1})
    at = compare(one, disturbed)
    monkeypatch.setattr(TournamentRunners, "run", Mock())
    assert "Other programs ran" in said(at)
    assert set(table(at)["vs baseline"]) == {"baseline", "unknown"}
    next(b for b in at.button if b.label == ALTERNATE).click().run()
    assert [[job.strategy for job in t.spec.jobs] for t in list_tournaments(store)] == [
        ["per-sample", "memory"]
    ]
    unlike = add_run(
        store, batch_size=64, device="simulated:5,0", seed=7, precision="bf16", model="ti/16", n=30
    )
    at = compare(one, simulated, unlike)
    assert not at.warning
    (box,) = [e.label for e in at.expander if "is not fair" in e.label]
    assert int(box.split()[-2]) > 3
    assert "simulated" in said(at)


def test_idle_time_by_cause(store: RunStore) -> None:
    trained, loaded = add_run(store), add_run(store, loader_only=True)
    at = compare(trained, loaded)
    assert "compare-strips" in charts(at)
    assert "compare-shares" in charts(at)
    assert f"Loader only, so no device time: run {loaded}." in said(at)
    assert "compare-strips" not in charts(compare(loaded))
    short = add_run(store, n=1)
    assert f"with too few device timings: run {short}." in said(compare(trained, short))
    at.segmented_control(key="unit").set_value("share").run()
    assert kept_in_url(at)["unit"] == "share"


def test_losses_and_waits_of_steps(store: RunStore) -> None:
    real, simulated = add_run(store), add_run(store, device="simulated:5,0")
    for runs, shown, words in (
        ((real, simulated), True, f"No loss for run {simulated}."),
        ((simulated,), False, "A simulated device computes no loss"),
    ):
        at = compare(*runs, show="Every step", metric="Loss")
        assert ("compare-loss" in charts(at), words in said(at)) == (shown, True)
    at = compare(add_run(store, wait_s=0.005), add_run(store, wait_s=0.0002), show="Data waits")
    frame = at.dataframe[1].value
    assert (frame["Median (ms)"].tolist(), frame["Steady steps"].tolist()) == (
        [5, 0.2],
        [35, 35],
    )
    assert "None of these runs got past its warm-up" in said(
        compare(add_run(store, n=3), show="Data waits")
    )


def test_headroom_where_it_was_measured(store: RunStore) -> None:
    with_it, without = add_run(store), add_run(store)
    for role in "ABC":
        add_run(
            store,
            group_key=RunGroup("headroom", with_it).key,
            role=role,
            wait_s=0.001 * "ABC".index(role),
        )
    at = compare(with_it, without, show="Headroom")
    assert f"compare-waterfall-{with_it}" in charts(at)
    assert f"compare-waterfall-{without}" not in charts(at)
    assert f"Headroom is not measured for run {without}." in said(at)


def test_a_picture_of_two_runs_for_a_talk(store: RunStore) -> None:
    slow, fast = add_run(store), add_run(store, wait_s=0.0001, strategy="memory")
    at = compare(fast, slow, show="For a talk")
    picture = charts(at)[f"talk-{slow}-{fast}"]
    title = picture["alt"].split(". ")[0]
    assert title == "Training on the CPU waits for data 50% of the time; with memory 2.0%"
    assert picture["name"] == f"vitprof-run-{slow}-and-{fast}"
    assert picture["wide"]["layout"]["width"] > picture["narrow"]["layout"]["width"]
    turned = compare(fast, slow, show="For a talk", baseline=str(fast))
    assert f"talk-{fast}-{slow}" in charts(turned)
    for other in (
        compare(slow, show="For a talk"),
        compare(slow, fast, add_run(store), show="For a talk"),
    ):
        assert any("Choose two runs" in shown.value for shown in other.info)
        assert not charts(other)
    loaded = add_run(store, loader_only=True)
    at = compare(slow, loaded, show="For a talk")
    assert "there is no picture" in said(at)


def test_settings_that_differ(store: RunStore) -> None:
    a, b = add_run(store, batch_size=64), add_run(store, batch_size=96, strategy="memory")
    at = compare(a, b, show="Settings that differ", baseline=str(b))
    frame = at.dataframe[1].value
    rows = dict(zip(frame["Setting"], frame.iloc[:, 1:3].to_numpy().tolist(), strict=True))
    assert (rows["Batch size"], rows["Strategy"]) == (
        ["64", "96"],
        ["per-sample (default)", "memory"],
    )
    assert "Order" not in rows, "per-sample has no such setting"
    assert "Seed" not in rows
    assert list(frame)[2].endswith("(baseline)")
    assert "have the same settings" in said(
        compare(a, add_run(store, batch_size=64), show="Settings that differ")
    )
    assert "Choose a second run" in said(compare(a, show="Settings that differ"))


def test_a_long_run_is_a_short_line_that_loses_no_peak(store: RunStore) -> None:
    run_id = add_run(store, n=3000)
    whole = findings.line_of(run_id, "step_s", 5000, True)
    line = findings.line_of(run_id, "data_wait_s", 100, False)
    assert (len(whole.step), whole.group, whole.warmup) == (3000, 1, 0)
    assert len(line.step) <= 200
    assert (line.group, line.warmup, line.value.dtype, line.step[0]) == (32, 5, np.float32, 5)
    assert line.t_s[0] == pytest.approx(0.05)
    empty = findings.line_of(add_run(store, n=0, status="failed"), "loss", 100, False)
    assert len(empty.step) == 0
    assert [findings.groups_each(n) for n in (1, 2, 10, 50)] == [900, 900, 400, 80], (
        "bytes do not grow with the runs"
    )
