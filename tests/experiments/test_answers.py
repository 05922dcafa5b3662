"""The answer on a stored run: which tournaments are proofs of its fixes."""

import pytest

from tests.ui.dashboard import add_run
from tests.ui.tournaments import add_script_tournament
from vitprof.analysis.verdict.advice import apply
from vitprof.config import own_script
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning
from vitprof.export.report import html_report
from vitprof.store import RunStore, StoredRun, role_of
from vitprof.store.tournaments import TournamentStatus, set_status

DEVICE = "simulated:5,0"
SCRIPT = ("python", "train.py")


def add_proof(store: RunStore, run_id: int, waits: tuple[float, float]) -> int:
    """Adds an ended proof of strategy memory for a run, three rounds with these data waits (s)."""
    config = store.run(run_id).config
    advised = apply(config, {"strategy": "memory"})
    spec = planning.in_turns(config, advised, of_run=run_id)
    return add_rounds(store, spec, waits)


def add_rounds(store: RunStore, spec: TournamentSpec, waits: tuple[float, ...]) -> int:
    number = planning.create_tournament(store, spec)
    for round_ in (1, 2, 3):
        for trial, wait_s in zip(planning.plan(spec), waits, strict=True):
            add_run(
                store,
                wait_s=wait_s * (1 + 0.01 * round_),
                device=trial.config.device,
                strategy=trial.config.strategy,
                group_key=f"tournament:{number}",
                role=role_of(trial.key, round_),
            )
    set_status(store, number, "done")
    return number


def proofs(store: RunStore, run: StoredRun) -> tuple[answers.Proof, ...]:
    verdict = answers.verdict_now(store, run)
    assert verdict is not None
    return answers.proofs_of(store, run, verdict)


def test_a_proof_of_the_runs_own_advice_is_its_gain(store: RunStore) -> None:
    run_id = add_run(store, device=DEVICE)
    other = add_run(store, device=DEVICE, seed=8)
    assert proofs(store, store.run(run_id)) == ()
    number = add_proof(store, run_id, (0.02, 0.001))
    (proof,) = proofs(store, store.run(run_id))
    assert (proof.place, proof.relation, proof.tournament_id) == (0, "faster", number)
    assert proof.times == pytest.approx(4.2, abs=0.1)
    assert proof.words == "memory, batch 128"
    assert proofs(store, store.run(other)) == (), "it is another run's"
    answer = answers.answer_of_run(store, store.run(run_id))
    assert answer is not None
    assert answer.proof == proof
    assert answer.remark, "the run itself waited for half of the time: at most 2x"
    assert (proof.n_rounds, proof.run_ids) == (3, tuple(range(other + 1, other + 7)))
    report = html_report(store, [store.run(run_id)], proofs={run_id: [proof]})
    assert f"; 3 rounds, runs {other + 1} to {other + 6})" in report


def test_a_proof_that_shows_no_gain_refutes_the_advice(store: RunStore) -> None:
    run_id = add_run(store, device=DEVICE)
    add_proof(store, run_id, (0.02, 0.04))
    (proof,) = proofs(store, store.run(run_id))
    assert proof.relation == "slower"
    answer = answers.answer_of_run(store, store.run(run_id))
    assert answer is not None
    assert answer.proof is None
    assert answer.fix is not None
    assert answer.fix.place == 1


def own_run(store: RunStore, command: str, directory: str) -> StoredRun:
    run_id = add_run(store, n=0)
    store.update_run(run_id, facts={"command": command, "directory": directory})
    return store.run(run_id)


@pytest.mark.parametrize(
    ("command", "directory", "same"),
    [
        ("python train.py", "/scripts/mine", True),
        ("python train.py", "/scripts/other", False),
        ("python train.py --epochs 3", "/scripts/mine", False),
        ("python train.py", "", False),
    ],
)
def test_a_tournament_is_of_a_script_by_its_command_and_directory(
    store: RunStore, command: str, directory: str, same: bool
) -> None:
    script = own_script.OwnScript(SCRIPT, "/scripts/mine", (("workers", (0, 2)),))
    run = own_run(store, command, directory)
    assert answers.is_of_script(run, script) is same


def test_a_run_without_steps_has_no_answer(store: RunStore) -> None:
    run = store.run(add_run(store, n=0))
    assert answers.answer_of_run(store, run) is None


@pytest.mark.parametrize(
    ("values", "status", "has_compared"),
    [
        ((1, 2), "done", True),
        ((1, 2, 8), "done", True),
        ((2,), "done", False),
        ((1, 2), "paused", False),
    ],
)
def test_a_tournament_has_compared_the_workers_that_are_worth_it(
    store: RunStore,
    values: tuple[int, ...],
    status: TournamentStatus,
    has_compared: bool,
) -> None:
    run = own_run(store, "python train.py", "/scripts/mine")
    config = own_script.own_config("python train.py", workers=0)
    store.update_run(run.id, config=config, environment={"cpu_count": 2})
    run = store.run(run.id)
    script = own_script.OwnScript(SCRIPT, "/scripts/mine", (("workers", values),))
    number = add_script_tournament(store, script, {}, status=status)
    elsewhere = own_script.OwnScript(SCRIPT, "/scripts/other", (("workers", (1, 2)),))
    add_script_tournament(store, elsewhere, {})
    found = answers.tournament_of_workers(run, answers.may_prove(store, run))
    assert (found is not None and found.id == number) is has_compared
