"""The proof of an advice's gain on the Profile page, and what it says as it goes on and ends."""

import re
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from tests.experiments.test_answers import add_proof
from tests.ui.dashboard import add_run, app, charts, click, said
from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.answer import (
    proof_conditions_in_words,
    proof_in_words,
    times_in_words,
)
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning, tournament_view
from vitprof.experiments.tournament.tournament_runner import TournamentRunners
from vitprof.store import RunStore, role_of, tournaments
from vitprof.store.tournaments import TournamentStatus, claim, list_tournaments, set_status
from vitprof.ui.profile.proof import NEXT

DEVICE = "simulated:5,0"


def test_a_press_runs_both_jobs_in_turns_and_a_demonstration_does_it_by_itself(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        TournamentRunners, "run", run := Mock(side_effect=lambda number: claim(store, number))
    )
    run_id = add_run(store, device=DEVICE)
    at = app(run=str(run_id))
    assert [b.proto.type for b in at.button if b.label == "Prove it"][:2] == [
        "primary",
        "secondary",
    ]
    click(at, "prove-0")
    (made,) = list_tournaments(store)
    run.assert_called_once_with(made.id)
    first, advised = made.spec.jobs
    assert (made.spec.of_run, first.strategy, first.batch_size) == (run_id, "per-sample", 128)
    assert (advised.strategy, advised.seconds, advised.evaluate) == (
        "memory",
        planning.PROOF_S,
        False,
    )
    assert "**Proving the gain:** the two jobs run alternately." in said(at)
    assert all(b.disabled for b in at.button if b.label == "Prove it"), "one at a time"
    assert "Proving it: round 1 of 3, [see below](#what-to-try)" in said(at), "where the button was"
    more: dict[str, Any] = {
        "group_key": f"tournament:{made.id}",
        "strategy": "per-sample",
        "device": DEVICE,
    }
    first_trial, _ = planning.plan(made.spec)
    add_run(store, role=role_of(first_trial.key, 2), **more)
    assert "Proving it: round 2 of 3, " in said(at.run())
    set_status(store, made.id, "stopped", owner=None)
    other = add_run(store, device=DEVICE, seed=8)
    at = app(run=str(other))
    at.session_state[NEXT] = str(other)
    at.run()
    assert [t.spec.of_run for t in list_tournaments(store)] == [other, run_id]


@pytest.mark.parametrize("tab", ["Answer", "Export"])
def test_proofs_are_looked_for_once_in_a_draw(store: RunStore, tab: str) -> None:
    """Card, list of advice and picture each read all tournaments: 52 ms a time with 200 of them."""
    run_id = add_run(store, device=DEVICE)
    with (
        patch.object(answers, "proofs_of", wraps=answers.proofs_of) as looked_for,
        patch.object(tournaments, "list_tournaments", wraps=list_tournaments) as listed,
    ):
        app(run=str(run_id), tab=tab)
    assert looked_for.call_count == 1
    # for its proofs, and for those that have begun
    assert [call.kwargs.get("of_run") for call in listed.call_args_list] == [run_id, run_id]


@pytest.mark.parametrize(
    ("waits", "status", "words"),
    [
        (
            ((0.02, 0.018, 0.0175), (0.018, 0.024, 0.026)),
            "done",
            "**Undecided:** memory, batch 128: 0.848x (95%: 0.",
        ),
        ((0.02, 0.001), "running", "**So far 4.22x** (95%: "),
        (
            (0.02, 0.001),
            "done",
            "**At least 4.1x** (in tournament 1, while other programs ran; 3 rounds, runs 2 to 7): memory",
        ),
        ((0.02, 0.02), "done", "**No gain:** memory, batch 128 is as fast, within 5%: 1.00x"),
        ((0.02, 0.04), "done", "**No gain:** memory, batch 128 is slower: 0.55"),
        ((0.02,), "stopped", "**Not proven:** too few runs."),
    ],
)
def test_its_answer_in_words(
    store: RunStore, waits: tuple[Any, ...], status: TournamentStatus, words: str
) -> None:
    run_id = add_run(store, device=DEVICE)
    spec = planning.in_turns(
        config := store.run(run_id).config, apply(config, {"strategy": "memory"}), of_run=run_id
    )
    number = planning.create_tournament(store, spec)
    for round_ in (1, 2, 3):
        for trial, wait_s in zip(planning.plan(spec), waits, strict=False):
            role, took_s = (
                role_of(trial.key, round_),
                np.resize(wait_s, 3)[round_ - 1] * (1 + 0.01 * round_),
            )
            more = {
                "group_key": f"tournament:{number}",
                "role": role,
                "strategy": trial.config.strategy,
            }
            add_run(store, wait_s=took_s, device=DEVICE, **more)  # type: ignore[arg-type]
    if status == "running":
        claim(store, number)
    set_status(store, number, status)
    with patch.object(tournament_view, "others_of", return_value=1.4):
        at = app(run=str(run_id))
    others = "Other programs used at least 1.4 cores (this page included): "
    assert (others in said(at)) is (status == "done")
    assert words in said(at), [w for w in said(at).splitlines() if "memory" in w]
    assert ("use-advice-0" in [b.key for b in at.button]) == ("No gain" not in words)
    assert "proof-bars-0" in charts(at)
    assert f"proof for run {run_id}" in said(app("tournament"))
    if "4.22x" in words or "4.1x" in words:
        advised = add_run(store, device=DEVICE, strategy="memory", name="its settings, once")
        compared = said(app("compare", runs=f"{run_id},{advised}"))
        assert ("Ran alternately" in compared) is (status == "done")
        assert (f"Run {advised} is 4.22x faster than run {run_id}" in compared) is (
            status == "done"
        )


def test_an_undecided_proof_whose_baseline_is_recommended_shows_no_gain() -> None:
    """As with 0.878x (0.680 to 1.04): the comparison crosses 1, and still the advice is not worth using."""
    advised, board = Mock(against_baseline="undecided"), Mock(baseline="a")
    with patch.object(answers, "recommend", side_effect=[Mock(key="a"), Mock(key="b"), None]):
        assert [answers.relation_of(advised, board) for _ in range(3)] == [
            "unneeded",
            "undecided",
            "undecided",
        ]


def test_the_card_and_the_list_say_the_same_of_a_proof(store: RunStore) -> None:
    """The card said 3.39x (2.26 to 5.10), the list "at least 2.26x faster" of the same runs."""
    run_id = add_run(store, device=DEVICE)
    add_proof(store, run_id, (0.02, 0.001))
    answer = answers.answer_of_run(store, store.run(run_id))
    assert answer is not None
    assert answer.proof is not None
    assert answer.proof.quiet
    times = times_in_words(answer.proof)
    sure = proof_conditions_in_words(answer.proof)
    at = app(run=str(run_id))
    assert f"**{times}** ({sure}; 3 rounds, runs 2 to 7): memory, batch 128, " in said(at)
    assert f"{times}\n{sure}" in re.sub("\n\n+", "\n", said(at))
    assert proof_in_words(answer) == f"{times} ({sure}; 3 rounds, runs 2 to 7)"
