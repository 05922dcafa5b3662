"""Tournaments on a user's own script, with one that passes for a training and says what it was asked for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.engine_fixtures import wait_until
from vitprof.analysis.tournament.recommend import recommend
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import OF_A_SCRIPT, read_varied
from vitprof.experiments import trials
from vitprof.experiments.tournament import tournament_trials
from vitprof.experiments.tournament.planning import agree, create_tournament
from vitprof.experiments.tournament.tournament_runner import TournamentRunner
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore
from vitprof.store.tournaments import StoredTournament, add_rounds, tournament

LIMIT_S = 120.0
"""Tournaments of the pretended script take seconds."""


@pytest.fixture
def manager(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobManager]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(trials, "TRIALS_EVERY_S", 0.005)
    made = JobManager(store, logs=tmp_path / "logs")
    yield made
    made.shutdown()


def made(
    store: RunStore,
    folder: Path,
    *words: str,
    vary: tuple[str, ...] = ("workers=2",),
    **more: object,
) -> int:
    (folder / "work").mkdir()
    command = (sys.executable, "-m", "tests.jobs.pretend", *words)
    varied = tuple(read_varied(text, OF_A_SCRIPT) for text in vary)
    script = OwnScript(command, str(folder / "work"), varied)
    known: dict[str, object] = {
        "repeats": 2,
        "until_decided": False,
        "early_stop": False,
        "baseline": UNCHANGED,
    }
    spec = TournamentSpec(
        own_config("", steps=60), (OWN_SCRIPT,), (1,), script=script, **(known | more)
    )  # type: ignore[arg-type]
    return create_tournament(store, spec)


def ran(manager: JobManager, number: int, *, agreed: bool = False) -> StoredTournament:
    """Returns what there is of it at its end; `agreed`: somebody agrees to the others after its first trial."""
    if agreed:
        ran(manager, number)
        agree(manager.store, number)
    runner = TournamentRunner(manager, number)
    assert (runner.join(LIMIT_S), runner.error) == (True, "")
    return tournament(manager.store, number)


def roles(store: RunStore, number: int) -> list[str]:
    return [
        r.role.partition("/")[2]
        for r in store.runs(group_key=f"tournament:{number}", oldest_first=True)
    ]


@pytest.mark.measured
def test_from_the_first_trial_to_the_answer(manager: JobManager, tmp_path: Path) -> None:
    store = manager.store
    number = made(store, tmp_path, "writes", "differs", vary=("workers=0,2", "prefetch_factor=4"))
    found = ran(manager, number)
    assert (found.status, roles(store, number)) == ("paused", ["unchanged#1"])
    assert found.spec.script is not None
    assert found.spec.script.writes == ("model.pt",)
    assert found.note.startswith(
        f"the first trial in {tmp_path / 'work'} wrote or deleted 1 file: model.pt; agree that "
    )
    assert found.note.endswith(f" python -m vitprof tournament resume {number} --yes")
    ran(manager, number)
    assert roles(store, number) == ["unchanged#1"], "nobody has agreed"
    agree(store, number)
    ran(manager, number)
    best = "workers=2/prefetch_factor=4"
    assert roles(store, number) == ["unchanged#1", f"{best}#1", f"{best}#2", "unchanged#2"]
    assert (tmp_path / "work" / "model.pt").read_text() == "of trial 4", (
        "each start has a number of its own"
    )
    view = TournamentView(store, number)
    now = view.state()
    assert (now.tournament.status, now.n_train) == ("done", 80)
    board = view.board(now)
    row = board.rows[0]
    assert row.key == f"{OWN_SCRIPT}/{best}"
    assert (row.entry.workers, row.entry.batch_size, row.entry.page_cache) == (2, 8, "as-is")
    assert (row.speed_up, row.entry.losses) == (
        pytest.approx(4, rel=0.02),
        "changes the losses: from step 0",
    )
    chosen = recommend(board)
    assert chosen is not None
    assert chosen.key == row.key
    assert "Note the losses: changes the losses: from step 0." in chosen.sentence
    run = store.run(row.entry.outcomes[0].run_id)
    assert (run.config.workers, run.config.prefetch_factor) == (2, 4)
    assert run.name.startswith("2 workers, prefetch 4: ")
    add_rounds(store, number, 1)
    ran(manager, number)
    assert roles(store, number)[4:] == [f"{best}#3", "unchanged#3"]


@pytest.mark.measured
def test_a_setting_that_fails_leaves_the_others(manager: JobManager, tmp_path: Path) -> None:
    number = made(
        manager.store, tmp_path, "fails", vary=("workers=0,1,2", "batch_size=8,16"), repeats=1
    )
    ran(manager, number, agreed=True)
    now = TournamentView(manager.store, number).state()
    statuses = {e.key.removeprefix(f"{OWN_SCRIPT}/"): e.status for e in now.entries}
    assert statuses.pop("unchanged") == statuses.pop("workers=0/batch_size=16") == "done"
    assert (len(statuses), set(statuses.values())) == (4, {"failed"})
    failed = next(e for e in now.entries if e.status == "failed")
    log = tmp_path / "logs" / f"run-{failed.outcomes[0].run_id}.log"
    assert f"exit status 1: ValueError: not with workers; its log is {log} (run" in failed.reason


def test_a_setting_that_changes_the_samples_of_an_epoch_is_never_recommended(
    manager: JobManager, tmp_path: Path
) -> None:
    """Each worker of an IterableDataset may give all: the steps are faster, the epoch is not."""
    number = made(manager.store, tmp_path, "all from each worker", repeats=1)
    ran(manager, number, agreed=True)
    view = TournamentView(manager.store, number)
    as_it_is, two = view.state().entries
    assert (as_it_is.status, two.status) == ("done", "failed")
    assert two.reason == (
        "an epoch has 160 samples with it, and 80 with the unchanged script: it changes what is trained on"
    )
    found = recommend(view.board())
    assert found is not None
    assert found.key is None
    assert (
        "the unchanged script is all that can be used: 2 workers is out: an epoch has"
        in found.sentence
    )


def test_a_first_trial_that_fails_ends_it_and_can_be_run_again(
    manager: JobManager, tmp_path: Path
) -> None:
    number = made(manager.store, tmp_path)
    folder = tmp_path / "work"
    folder.rename(tmp_path / "away")
    found = ran(manager, number)
    assert found.status == "stopped"
    assert found.note.startswith(
        "the first trial, the unchanged script, did not end as it should: cannot start "
    )
    (tmp_path / "away").rename(folder)
    assert ran(manager, number).status == "paused"


def test_nothing_to_compare(manager: JobManager, tmp_path: Path) -> None:
    number = made(manager.store, tmp_path, vary=("prefetch_factor=2,4",))
    found = ran(manager, number, agreed=True)
    why = "nothing to compare the script with: without workers prefetch_factor has no meaning: left out"
    assert (found.status, found.note, len(roles(manager.store, number))) == ("done", why, 1)


def test_a_stop_ends_the_trial_under_way_and_keeps_what_there_is(
    manager: JobManager, tmp_path: Path
) -> None:
    number = made(manager.store, tmp_path, "hangs")
    runner = TournamentRunner(manager, number)
    log = tmp_path / "logs" / "run-1.log"
    wait_until(lambda: log.exists() and log.read_text(), "what the script prints")
    runner.shutdown("paused by Ctrl-C")
    found = tournament(manager.store, number)
    assert (found.status, found.note) == ("paused", "paused by Ctrl-C")
    (run,) = manager.store.runs(group_key=f"tournament:{number}")
    assert run.status == "stopped"


def test_a_trial_that_makes_no_step_is_ended_by_the_time_limit(
    manager: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = made(manager.store, tmp_path, "hangs", seconds=10.0)
    monkeypatch.setattr(tournament_trials, "RACE_CHECK_S", 0.05)
    monkeypatch.setattr(tournament_trials, "_since_prepared_s", lambda run: 11.0)
    found = ran(manager, number)
    why = "no training step within the time limit of 10 s"
    assert found.note == f"the first trial, the unchanged script, did not end as it should: {why}"
    assert found.status == "stopped"
