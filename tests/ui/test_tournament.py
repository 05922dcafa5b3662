"""The Tournament page: the answer, the leaderboard, one section at a time, what is running, and the list."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.stored_series import append_telemetry
from tests.ui.dashboard import (
    LIMIT_S,
    add_run,
    address,
    app,
    charts,
    click,
    kept_in_url,
    read,
    said,
)
from tests.ui.tournaments import DEVICE, KEYS, add_script_tournament, add_tournament, spec
from vitprof import formats
from vitprof.analysis.tournament.blocks import Disturbance, RunBlocks
from vitprof.analysis.tournament.recommend import recommend
from vitprof.config import RunConfig
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, settings_of
from vitprof.errors import JobError
from vitprof.experiments.tournament import tournament_view
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.tournament.tournament_runner import TournamentRunners
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.export.tournament import tournament_csv
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunQuery, RunStore, read_role, role_of
from vitprof.store.tournaments import (
    TournamentStatus,
    claim,
    list_tournaments,
    set_status,
    tournament,
)
from vitprof.ui import tables
from vitprof.ui.notifications import TO_SAY
from vitprof.ui.tournament import page as tournament_page
from vitprof.ui.tournament import state as tournament_state
from vitprof.ui.tournament.results import OF_OWN_SCRIPTS, SECTIONS
from vitprof.ui.tournament.state import runners

WAITS = {"per-sample": 0.02, "memory": 0.001}


@pytest.fixture(autouse=True)
def _no_tournament_goes_on(store: RunStore) -> Iterator[None]:
    yield
    runners().shutdown()


def shown(tournament_id: int, **query: str) -> AppTest:
    return app("tournament", tournament=str(tournament_id), **query)


def test_another_baseline_is_in_the_address_and_another_tournament_has_its_own(
    store: RunStore,
) -> None:
    one, other = add_tournament(store, WAITS), add_tournament(store, WAITS)
    at = shown(one)
    at.selectbox(key="against").set_value(KEYS["memory"]).run()
    assert not at.exception
    assert kept_in_url(at)["against"] == KEYS["memory"]
    assert list(at.dataframe[0].value["vs baseline"][:2]) == ["baseline", "slower"]
    assert list(at.dataframe[0].value["vs fastest"][:2]) == ["★ recommended", "slower"]
    at = shown(one, against="memory, batch 128", section="Heat map")
    assert list(at.dataframe[0].value["vs baseline"][:2]) == ["baseline", "slower"]
    assert [*charts(at)] == ["tournament-heat"]
    click(at, "tournament-back")
    click(at, f"tournament-open-{other}")
    assert kept_in_url(at) == {"against": KEYS["per-sample"], "section": "speed"}


def test_only_the_section_shown_is_worked_out(store: RunStore) -> None:
    tournament_id = add_tournament(store, WAITS)
    pages = {words: shown(tournament_id, section=words) for words, _ in SECTIONS.values()}
    assert {words: [*charts(at)] for words, at in pages.items()} == {
        "Throughput": ["tournament-bars"],
        "Epochs by batch size": [],
        "Heat map": ["tournament-heat"],
        "What it costs": ["tournament-pareto"],
        "Break-even": ["tournament-break-even"],
        "One setting": [],
    }
    frame = pages["Epochs by batch size"].dataframe[1].value
    assert list(frame["Setting"]) == ["memory", "per-sample", "tensordataset"]
    assert frame["Epoch (s), batch 128"][0] < frame["Epoch (s), batch 128"][1]
    assert "Not available here: GPU memory and GPU-util" in said(pages["Epochs by batch size"])
    at = pages["One setting"]
    assert list(at.dataframe[1].value["Round"]) == [1, 2]
    at.selectbox(key="setting").set_value(KEYS["tensordataset"]).run()
    assert len(at.dataframe) == 1, "it has no runs"


def test_the_figure_of_a_setting_follows_from_its_runs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_quarter(store: RunStore, run_id: int, made: RunBlocks) -> Disturbance:
        n = len(made.per_s)
        return Disturbance(np.full(n, 1.0), np.arange(n) < n // 4)

    monkeypatch.setattr(tournament_view, "disturbance_of", first_quarter)
    at = shown(add_tournament(store, WAITS), section="One setting")
    frame = at.dataframe[1].value
    assert list(frame["Left out (%)"]) == pytest.approx([25, 25], abs=2)
    setting = at.selectbox(key="setting").value
    row = TournamentView(store, 1).board().row(setting)
    assert row is not None
    shown_figure = tables.rounded(row.samples_per_s)
    assert min(frame["Samples/s"]) <= shown_figure <= max(frame["Samples/s"])
    assert "Whole run (samples/s)" in frame
    figure = formats.number(row.samples_per_s, "samples/s")
    assert f"The {figure} of this setting are all samples over all time that counts" in said(at)


def test_devices_are_named_as_a_reader_knows_them(store: RunStore) -> None:
    base = RunConfig(steps=40, device="simulated:h100=6,462", evaluate=False)
    number = create_tournament(store, spec(base=base))
    for at in (app("tournament"), shown(number)):
        assert "simulated H100" in said(at)
        assert "6,462" not in said(at)


def test_the_setting_can_be_used_at_once_taken_as_code_and_compared(store: RunStore) -> None:
    at = shown(add_tournament(store, WAITS), section="Heat map", against="memory, batch 128")
    click(at, "tournament-use-best")
    assert at.selectbox(key="set-strategy").value == "memory"
    assert [at.number_input(key=f"set-device-{name}").value for name in ("ms", "us")] == [5, 0]
    assert address(at)["strategy"] == "memory", (
        "else Profile would put it there, and Back would need two presses"
    )
    ((words, _),) = at.session_state[
        TO_SAY
    ]  # app.py says it, which `AppTest.switch_page` passes by
    assert words == "The settings of tournament 1 are in the sidebar. Press Run to start."
    at.switch_page("pages/tournament.py").run()
    assert address(at)["tournament"] == "1", "as it was left"
    assert [*charts(at)] == ["tournament-heat"]
    at.toggle(key="tournament-code-best").set_value(True).run()
    compile(at.code[0].value, "script", "exec")
    assert "import vitprof" not in at.code[0].value
    click(at, "tournament-compare-best")
    compared = {store.run(int(run_id)).config.strategy for run_id in address(at)["runs"].split(",")}
    assert compared == {"memory", "per-sample"}
    base = at.selectbox(key="compare-baseline").value
    assert store.run(base).config.strategy == "memory", "the tournament's baseline, not the slowest"


def test_one_of_another_machine_can_be_taken_over_and_resumed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = add_tournament(store, {"per-sample": 0.02}, rounds=1)
    set_status(store, number, "running", owner={"host": "box-1", "pid": 7, "started": 1.0})
    at = shown(number)
    assert "another machine: box-1, process 7" in said(at)
    click(at, "tournament-take-over")
    assert "Paused: taken over from box-1. 1 of 6 runs are done" in said(at)
    run = Mock(side_effect=[None, JobError("another program took it just now")])
    monkeypatch.setattr(TournamentRunners, "run", run)
    click(at, "tournament-resume")
    run.assert_called_once_with(number)
    click(at, "tournament-resume")
    assert [error.value for error in at.error] == ["another program took it just now"]


@pytest.fixture
def runner(store: RunStore) -> Mock:
    """Stands in for the thread that runs a tournament."""
    number = add_tournament(store, {"per-sample": 0.02}, rounds=1, status="paused")
    claim(store, number)
    runner = Mock(alive=True, id=number)
    runner.pause = lambda: set_status(
        store, number, "paused", note="the current run is finished first"
    )
    runner.resume.side_effect = lambda: set_status(store, number, "running", note="")
    runners()._runners[number] = runner
    return runner


def test_pause_resume_stop_end_and_more_rounds(
    runner: Mock, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = shown(runner.id)
    assert any(
        re.search("1 of 6 runs done.*; at most about", str(bar.proto)) for bar in at.get("progress")
    )
    assert "Too early: only per-sample" in said(at)
    assert at.dataframe[0].value["vs fastest"].iloc[0] == "undecided", "nothing else has run"
    click(at, "tournament-pause")
    assert "Paused: the current run is finished first" in said(at)
    click(at, "tournament-resume")
    assert "Paused" not in said(at)
    click(at, "tournament-stop")
    runner.stop.assert_called_once_with()
    runner.alive = False  # as where another program runs it
    at.run()
    assert "It runs in another program" in said(at)
    assert not [b for b in at.button if b.label in ("Pause", "Stop", "Resume")]
    set_status(store, runner.id, "done", owner=None)
    at.run()
    assert not at.exception
    assert not at.get("progress")
    monkeypatch.setattr(TournamentRunners, "run", run := Mock())
    click(at, "tournament-more-rounds")
    run.assert_called_once_with(runner.id)
    found = tournament(store, runner.id)
    assert (found.spec.repeats, found.status) == (4, "paused")


def test_nobody_is_told_to_run_more_rounds_while_they_run(store: RunStore) -> None:
    waits = {"per-sample": 0.02, "memory": 0.001, "tensordataset": 0.001}
    number = add_tournament(store, waits, rounds=1, status="paused")
    claim(store, number)
    set_status(store, number, "running")
    assert (
        "Too early: each setting has one run that counts, and needs two. It goes on by itself."
        in (said(shown(number)))
    )
    set_status(store, number, "paused", owner=None)
    assert "and needs two. Run more rounds." in said(shown(number))


def test_images_that_cannot_be_read_end_it_with_the_question(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TournamentRunners, "run", Mock())
    why = "every setting would fail as memory, batch 128 did: 017.jpg cannot be read"
    number = add_tournament(store, {}, failed="memory", status="stopped", note=why)
    [run] = store.runs(group_key=f"tournament:{number}")
    store.update_run(run.id, facts={"unreadable_sample": True})
    at = shown(number)
    assert [why[1:] in warning.value.replace("\\", "") for warning in at.warning] == [True]
    assert "Resume" not in [button.label for button in at.button]
    click(at, "tournament-skip-again")
    other = int(at.query_params["tournament"][0])
    assert other != number
    assert tournament(store, other).spec.base.skip_unreadable


@pytest.mark.parametrize("status", ["done", "stopped"])
def test_where_all_that_ran_failed_it_says_so_and_why(
    store: RunStore, status: TournamentStatus
) -> None:
    number = add_tournament(store, {}, failed="memory", status=status)
    why = "1 of 3 settings failed, and no other has a figure: the disk is full: free some space"
    at = shown(number)
    assert why in said(at)
    assert "No figures yet" not in said(at)
    assert why in said(app("tournament"))


def test_one_that_ended_is_not_too_early(store: RunStore) -> None:
    add_tournament(store, {"per-sample": 0.02}, failed="memory", status="done")
    words = said(app("tournament"))
    assert "Too early: only per-sample, batch 128 has run" in words, "the list says why"
    assert "too early" not in words


def test_one_at_a_time(runner: Mock, store: RunStore) -> None:
    at = app("tournament")
    assert at.button(key="tournament-start").disabled
    assert (tournament_state.start(spec(), "another tab's"), len(list_tournaments(store))) == (
        runner.id,
        1,
    )
    with pytest.raises(JobError, match=f"tournament {runner.id} is running"):
        tournament_state.resume(runner.id + 1)
    click(at, "tournament-show-running")
    assert address(at)["tournament"] == str(runner.id)


def _draw_question(number: int) -> None:
    from vitprof.ui.tournament.page import ask_to_delete

    ask_to_delete(number)


def test_the_list_opens_and_deletes(store: RunStore) -> None:
    old = add_tournament(store, WAITS, name="old one")
    new = add_tournament(store, {}, failed="memory", name="*new* one")
    at = app("tournament")
    assert said(at).index(f"{new}: *new* one") < said(at).index(f"{old}: old one")
    assert "recommended: memory, batch 128, 21," in said(at)
    assert "samples/s (simulated)" in said(at)
    assert "1 of 3 settings failed, and no other has a figure" in said(at)
    click(at, f"tournament-ask-{old}")
    assert f"{old}: old one" in said(at)
    at = AppTest.from_function(
        _draw_question, default_timeout=LIMIT_S, kwargs={"number": old}
    ).run()
    click(at, "tournament-delete-yes")
    ((words, _),) = at.session_state[TO_SAY]
    assert words == f"Tournament {old} and its 4 runs deleted"
    assert [t.id for t in list_tournaments(store)] == [new]
    assert store.count_runs(RunQuery(helpers=True)) == 1
    at = app("tournament")
    click(at, f"tournament-open-{new}")
    assert address(at)["tournament"] == str(new)
    assert "1 of 3 settings failed, and no other has a figure" in said(at)
    assert not charts(at)
    click(at, "tournament-back")
    assert "tournament" not in at.query_params


def test_one_that_is_not_there_is_a_line(store: RunStore) -> None:
    for named in ("7", "<b>" * 9):
        at = app("tournament", tournament=named)
        (line,) = at.warning
        assert f"Tournament {named[:20]} is not here" in read(line.value)
        assert "Which way of loading is the fastest here" in said(at)
        assert "tournament" not in at.query_params


def test_page_store_list_and_downloads_say_the_same(store: RunStore) -> None:
    """A tournament with a round that others spoiled, a run left half done, a failed setting and added rounds."""
    number = add_tournament(store, WAITS, failed="tensordataset")
    group = f"tournament:{number}"

    def made(
        strategy: str, round_: int, wait_s: float, *, status: str = "done", others: bool = False
    ) -> None:
        role = role_of(KEYS[strategy], round_)
        run = add_run(
            store,
            wait_s=wait_s,
            group_key=group,
            role=role,
            strategy=strategy,
            device=DEVICE,
            status=status,
        )
        busy = {"cpu_pct": 100.0 if others else 25.0, "job_cpu_pct": 100.0}
        seen = [busy | {"t_s": 90.0 + 0.2 * n} for n in range(200)]
        append_telemetry(
            store, run, 1, [[row.get(name, math.nan) for name in TELEMETRY_COLUMNS] for row in seen]
        )

    for round_ in (3, 4, 5):  # added
        made("per-sample", round_, 0.02)
        made("memory", round_, 0.00099)  # the best: what others took then is known
    made("memory", 6, 0.02, others=True)
    made("per-sample", 6, 0.02, status="interrupted")
    made("per-sample", 6, 0.02)
    for run in store.runs(group_key=group):
        store.update_run(run.id, environment={"cpu_count": 4})
    per_setting = Counter(read_role(run.role)[0] for run in store.runs(group_key=group))
    at = app("tournament", tournament=str(number))
    frame = at.dataframe[0].value
    runs = dict(zip(frame["Setting"], frame["Runs"], strict=True))
    counts = {"memory": "5 of 6", "per-sample": "6 of 7", "tensordataset": "0 of 1"}
    assert list(runs.items()) == [(f"{name}, batch 128", words) for name, words in counts.items()]
    assert [per_setting[KEYS[name.partition(",")[0]]] for name in runs] == [6, 7, 1]
    assert "Done: 14 runs" in said(at)
    assert "Recommended" in said(at)
    assert any("simulated" in str(badge.value) for badge in at.markdown)
    assert [e.label for e in at.expander] == ["Details", "Why: 1 failed"]
    assert "the disk is full: free some space" in said(at)
    assert re.fullmatch(r"2\d,\d00 \([\d,]+-[\d,]+\)", frame["Samples/s"][0])
    assert "memory, batch 128: round 6 not counted: other programs used 3.0 CPU cores" in said(at)
    (times,) = re.findall(
        r"([\d.]+) times that of per-sample, batch 128 \(([\d.]+) to ([\d.]+), 5 runs", said(at)
    )
    assert frame["Speed-up"][0] == f"{times[0]}x ({times[1]}-{times[2]})"
    assert (list(frame["Rank"][:2]), list(frame["vs fastest"])) == (
        [1, 2],
        ["★ recommended", "slower", "failed"],
    )
    assert list(frame["vs baseline"][:2]) == ["faster", "baseline"]
    throughput = frame["Samples/s"][0].partition(" ")[0]
    assert f"Use memory, batch 128: {throughput} samples/s" in said(at)
    view = TournamentView(store, number)
    now = view.state()
    best = recommend(view.board(now))
    rows = csv.DictReader(io.StringIO(tournament_csv(now.tournament, view.board(now), (), best)))
    (row,) = [row for row in rows if row["recommended"] == "true"]
    told = (row["key"], row["rank"], f"{row['n_runs']} of {row['n_made']}", row["against_baseline"])
    assert told == (KEYS["memory"], "1", "5 of 6", "faster")
    assert f"recommended: memory, batch 128, {throughput} samples/s" in said(app("tournament"))


LOADER = {"num_workers": 0, "batch_size": 8, "n_samples": 800, "made_given": "batch_size"}
OWN_WAITS = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=2": 0.01, f"{OWN_SCRIPT}/workers=4": 0.0001}


def add_own_tournament(
    store: RunStore,
    *,
    status: TournamentStatus = "done",
    agreed: bool = True,
    rounds: int = 2,
    made_by_script: bool = True,
    **state: object,
) -> int:
    """A script whose steps wait for less, the more workers there are."""
    varied = (("workers", (2, 4)), ("decode_cache", ("off",)))
    loader = LOADER | {"made_by_script": made_by_script}
    script = OwnScript(("python", "train.py"), "/work", varied, loader, ("model.pt",), agreed)
    assert [s.key for s in settings_of(script)] == list(OWN_WAITS)
    waits = OWN_WAITS if agreed else {UNCHANGED: OWN_WAITS[UNCHANGED]}
    return add_script_tournament(store, script, waits, rounds=rounds, status=status, **state)


def test_the_answer_of_an_own_script_has_the_line_to_paste_and_the_line_to_type(
    store: RunStore,
) -> None:
    at = shown(add_own_tournament(store))
    text = said(at)
    assert "Use 4 workers: " in text
    assert "times that of the unchanged script" in text
    assert "runs python train.py in /work and trains for up to 40 steps" in text
    codes = [code.value for code in at.get("code")]
    assert codes == [
        "DataLoader(..., num_workers=4)",
        "python -m vitprof tournament resume 1 --more-rounds 3",
    ], "the answer comes first"
    frame = at.dataframe[0].value
    assert list(frame["Setting"]) == ["4 workers", "2 workers", "the unchanged script"]
    labels = {button.label for button in at.button}
    assert not labels & {"Run 3 more rounds", "Resume", "Use these settings", "Start tournament"}, (
        "it starts nothing"
    )
    for section in OF_OWN_SCRIPTS[1:]:  # the first is shown at once
        at.segmented_control(key="section").set_value(section).run()
        assert not at.error
    at.selectbox(key="setting").set_value(f"{OWN_SCRIPT}/workers=2").run()
    assert "DataLoader(..., num_workers=2)" in [code.value for code in at.get("code")]
    assert "recommended: 4 workers" in said(app("tournament"))


@pytest.mark.parametrize("made_by_script", [True, False])
def test_the_answer_can_be_had_as_a_patch_where_the_script_makes_its_loader(
    store: RunStore, made_by_script: bool
) -> None:
    text = said(shown(add_own_tournament(store, made_by_script=made_by_script)))
    assert ("As a patch of your script: type `python -m vitprof patch 1`" in text) == made_by_script


def test_what_it_wrote_stands_there_until_somebody_agrees(store: RunStore) -> None:
    note = "the first trial wrote 1 file under /work: model.pt"
    at = shown(add_own_tournament(store, status="paused", agreed=False, rounds=1, note=note))
    assert note in said(at)
    codes = [code.value for code in at.get("code")]
    assert codes == ["model.pt", "python -m vitprof tournament resume 1 --yes"]
    assert "Resume" not in {button.label for button in at.button}
    at = shown(add_own_tournament(store, status="stopped", rounds=1))
    assert "python -m vitprof tournament resume 2" in [code.value for code in at.get("code")]


def test_a_tournament_that_a_console_starts_is_shown_without_a_reload(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    redrawn: list[str] = []
    monkeypatch.setattr(st, "rerun", lambda *, scope: redrawn.append(scope))
    running = SimpleNamespace(id=3)
    for now, drawn, redraws in (
        (None, None, False),
        (running, None, True),
        (running, 3, False),
        (None, 3, True),
    ):
        monkeypatch.setattr(tournament_state, "running_tournament", lambda now=now: now)
        redrawn.clear()
        tournament_page._draw_when_changed(drawn)
        assert redrawn == (["app"] if redraws else []), (now, drawn)
