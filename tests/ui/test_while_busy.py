"""What was faster only while other programs ran: the same words wherever it is shown, recommended
nowhere."""

import csv
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.command_line import Call, succeeds
from tests.ui.dashboard import add_run, app, said
from vitprof.analysis.tournament.blocks import Disturbance, RunBlocks
from vitprof.analysis.tournament.recommend import break_even, recommend
from vitprof.analysis.verdict.advice import apply
from vitprof.cli.common.results import running_words
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning, tournament_trials, tournament_view
from vitprof.experiments.tournament.tournament_trials import TournamentTrials
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.export import tables
from vitprof.export.markdown import answer_markdown
from vitprof.export.report import html_report
from vitprof.export.tournament import tournament_csv, tournament_markdown, tournament_object
from vitprof.store import RunStore, role_of, tournaments
from vitprof.store.tournaments import claim, set_status

DEVICE = "simulated:5,0"
ROUNDS = 5
OTHERS_CORES = 1.1
AT_LEAST = "at least 4.1x"
"""The smallest ratio of the rounds is (0.0202 + 0.005) / (0.00101 + 0.005) = 4.19."""
WHILE = "while other programs used 1.1 of 2 cores"


def _disturbed(_store: RunStore, _run_id: int, blocks: RunBlocks) -> Disturbance:
    n = len(blocks.per_s)
    return Disturbance(np.full(n, OTHERS_CORES), np.ones(n, dtype=bool))


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs disturb every run."""
    monkeypatch.setattr(tournament_view, "others_of", lambda *_: OTHERS_CORES)
    monkeypatch.setattr(tournament_view, "cores_for_all", lambda _: 2.0)
    monkeypatch.setattr(tournament_view, "disturbance_of", _disturbed)


@pytest.fixture
def busy(store: RunStore, others: None) -> tuple[int, int]:
    """A run and the proof of its advice, all of whose rounds other programs disturbed."""
    run_id, number = add_proof(store, ROUNDS)
    set_status(store, number, "done")
    return run_id, number


def add_proof(store: RunStore, n_rounds: int) -> tuple[int, int]:
    """Adds a run and so many rounds of the proof of its advice; returns their numbers."""
    run_id = add_run(store, device=DEVICE)
    config = store.run(run_id).config
    spec = planning.in_turns(config, apply(config, {"strategy": "memory"}), of_run=run_id)
    number = planning.create_tournament(store, spec)
    for round_ in range(1, n_rounds + 1):
        for trial, wait_s in zip(planning.plan(spec), (0.02, 0.001), strict=True):
            more: dict[str, Any] = {
                "group_key": f"tournament:{number}",
                "role": role_of(trial.key, round_),
                "strategy": trial.config.strategy,
            }
            add_run(store, wait_s=wait_s * (1 + 0.01 * round_), device=DEVICE, **more)
    return run_id, number


def test_the_card_the_proof_the_list_and_the_page_of_the_tournament_agree(
    busy: tuple[int, int],
) -> None:
    run_id, number = busy
    profile = said(app(run=str(run_id)))
    assert AT_LEAST in profile
    assert f"in tournament {number}, while other programs ran" in profile
    assert f"**At least 4.1x faster**, {WHILE}: memory, batch 128, in each of 5 rounds." in profile
    listed = said(app("tournament"))
    assert f"faster while other programs ran: memory, batch 128, {AT_LEAST}" in listed
    assert "recommended:" not in listed
    page = app("tournament", tournament=str(number))
    shown = said(page)
    assert "Faster while other programs ran" in shown
    sentence = f"was at least 4.1 times as fast as per-sample, batch 128, 0 workers in each of 5 rounds, {WHILE}."
    assert sentence in shown
    assert "On a quiet machine it may gain less" in shown
    table = page.dataframe[0].value.set_index("Setting")
    assert table.loc["memory, batch 128", "Speed-up"] == AT_LEAST
    assert table.loc["memory, batch 128", "vs baseline"] == "faster while busy"
    assert "★ recommended" not in list(table["vs fastest"])
    assert "tournament-use-best" not in [button.key for button in page.button]


def test_terminal_files_and_compare_agree(
    store: RunStore, busy: tuple[int, int], call: Call
) -> None:
    run_id, number = busy
    run = store.run(run_id)
    answer = answers.answer_of_run(store, run)
    assert answer is not None
    assert answer.proof is not None
    assert (answer.proof.quiet, answer.proof.relation) == (False, "faster while busy")
    assert AT_LEAST in succeeds(call, "runs", str(run_id))
    assert AT_LEAST in answer_markdown(run, answer)
    assert AT_LEAST in html_report(store, [run], proofs={run_id: [answer.proof]})
    found = answers.answers_of(store, [run])
    row = pd.read_csv(io.StringIO(tables.summary_csv([run], found))).iloc[0]
    assert row["gain_while_busy"] == pytest.approx(4.19, abs=0.02)
    assert pd.isna(row["gain_proven"])
    assert row["proof_tournament"] == number
    advised = add_run(store, device=DEVICE, strategy="memory", name="its settings, once")
    compared = said(app("compare", runs=f"{run_id},{advised}"))
    assert f"Run {advised} was {AT_LEAST} as fast as run {run_id}." in compared
    assert "Ran alternately while other programs ran" in compared
    turned = said(app("compare", runs=f"{run_id},{advised}", baseline=str(advised)))
    assert f"Run {advised} was {AT_LEAST} as fast as run {run_id}." in turned


def test_the_tournaments_own_files_agree_and_recommend_nothing(
    store: RunStore, busy: tuple[int, int]
) -> None:
    _, number = busy
    view = TournamentView(store, number)
    now = view.state()
    board = view.board(now)
    best = recommend(board)
    assert best is not None
    plain = tournament_object(now.tournament, board, break_even(board), best)
    memory = next(trial for trial in plain["trials"] if trial["strategy"] == "memory")
    assert plain["recommendation"]["key"] is None
    assert plain["recommendation"]["outcome"] == "faster while busy"
    assert plain["recommendation"]["while_busy"] == memory["key"]
    assert (memory["against_baseline"], memory["recommended"]) == ("faster while busy", False)
    assert memory["at_least"] == pytest.approx(4.19, abs=0.02)
    assert memory["speed_up"] is None, "no run counts"
    text = tournament_csv(now.tournament, board, break_even(board), best)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["recommended"] for row in rows} == {"false"}
    (of_memory,) = [row for row in rows if row["strategy"] == "memory"]
    assert of_memory["against_baseline"] == "faster while busy"
    assert float(of_memory["at_least"]) == pytest.approx(memory["at_least"])
    assert "at least 4.1 times as fast" in tournament_markdown(now.tournament, board, best)


def test_while_it_runs_nothing_is_the_fastest_before_a_round_counts(
    store: RunStore, others: None
) -> None:
    """It said "So far 6.56x, after 0 rounds"."""
    run_id, number = add_proof(store, 1)
    claim(store, number)
    shown = said(app(run=str(run_id)))
    assert "**Proving the gain:** no round counts yet: other programs ran in each." in shown
    assert "That is more than" not in shown, "no gain was named"
    view = TournamentView(store, number)
    now = view.state()
    words = running_words(now, view.board(now))
    assert words.endswith("; no round counts yet: other programs ran in each")


def test_before_enough_rounds_it_says_that_a_bound_will_come(store: RunStore, others: None) -> None:
    run_id, number = add_proof(store, ROUNDS - 2)
    will_come = (
        "fter 4 rounds in which they ran alike it can say at least how much faster a setting is"
    )
    view = TournamentView(store, number)
    best = recommend(view.board(view.state()))
    assert best is not None
    every_run = "Undecided so far: other programs disturbed every run of both settings, so no"
    assert best.sentence.startswith(every_run)
    assert f"run more rounds, or leave them: a{will_come}." in best.sentence
    claim(store, number)
    assert f"A{will_come}." in said(app(run=str(run_id)))


def test_what_was_faster_is_not_called_undecided_and_no_round_beside_them_decides_it(
    store: RunStore, busy: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Ended: undecided; more rounds may decide it" stood above "at least 5.7 times as fast"."""
    _, number = busy
    shown = said(app("tournament", tournament=str(number)))
    assert "ndecided so far" not in shown
    assert (
        "No firm number so far: other programs disturbed every run of both settings. End " in shown
    )
    assert "alike" not in shown, "what will come has come"
    assert "For a firm number, once the other programs have ended:" in shown
    stored = tournaments.tournament(store, number)
    plan = planning.plan(stored.spec)
    trials = TournamentTrials(store, stored, plan, lambda: None, lambda: "running")
    monkeypatch.setattr(tournament_trials, "can_be_fastest", lambda board: ("a", "b"))
    assert trials.end() == ("done", "")


def test_while_it_runs_what_is_surely_faster_is_said(store: RunStore, others: None) -> None:
    run_id, number = add_proof(store, ROUNDS)
    claim(store, number)
    shown = said(app(run=str(run_id)))
    assert f"**So far {AT_LEAST}**, {WHILE}: memory, batch 128, in each of 5 rounds." in shown
    view = TournamentView(store, number)
    now = view.state()
    assert "fastest so far: memory, batch 128" in running_words(now, view.board(now))
