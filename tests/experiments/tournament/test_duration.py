"""How many trials of a user's own script there are and how long they take, before and after the first one."""

import dataclasses

import pytest

from tests.ui.dashboard import add_run
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.duration import script_words
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import StoredTournament, tournament

UNKNOWN = "3 settings x 3 rounds = 9 runs, for a time that is known after the first one"


def stored(store: RunStore, **more: object) -> StoredTournament:
    script = OwnScript(("python", "train.py"), "/work", (("workers", (1, 2)),))
    known = {"script": script, "baseline": UNCHANGED, "until_decided": False} | more
    spec = TournamentSpec(own_config("", steps=100), (OWN_SCRIPT,), (1,), **known)  # type: ignore[arg-type]
    return tournament(store, create_tournament(store, spec))


def add_watched(store: RunStore, n_steps: int, wall_s: float, command: str) -> int:
    """A run of a script whose steps take 100 ms each."""
    run_id = add_run(store)
    config = dataclasses.replace(own_config("", steps=n_steps), batch_size=10)
    summary = RunSummary(n_steps=n_steps, samples_per_s=100.0, wall_s=wall_s)
    facts = {"command": command, "directory": "/work"}
    store.update_run(run_id, config=config, summary=summary, facts=facts)
    return run_id


@pytest.mark.parametrize(
    ("n_steps", "wall_s", "trial", "time"),
    [
        (76, 26.0, "26.0 s", "4 min"),  # the script ends before the trial does
        (300, 40.0, "20.0 s", "3 min"),  # without the steps that a trial does not run
    ],
)
def test_it_takes_as_long_as_the_watched_run_did(
    store: RunStore, n_steps: int, wall_s: float, trial: str, time: str
) -> None:
    made = stored(store)
    assert script_words(store, made) == UNKNOWN
    add_watched(store, n_steps, wall_s, "python other.py")
    assert script_words(store, made) == UNKNOWN, "that is another script"
    watched = add_watched(store, n_steps, wall_s, "python train.py")
    each = f"if each takes as long as run {watched} ({trial})"
    assert script_words(store, made) == f"3 settings x 3 rounds = 9 runs, about {time} {each}"


def test_the_first_trial_says_it_best(store: RunStore) -> None:
    add_watched(store, 76, 26.0, "python train.py")
    made = stored(store, until_decided=True, seconds=600.0)
    group = f"tournament:{made.id}"
    first = add_run(store, group_key=group, role=role_of(UNCHANGED, 0))
    store.update_run(first, summary=RunSummary(n_steps=76, wall_s=10.0))
    assert script_words(store, made) == (
        f"3 settings x 3 rounds = 9 runs, about 90 s if each takes as long as run {first} (10.0 s); "
        "up to 10 rounds (about 5 min) until it is decided; none starts after 10 min 0 s"
    )
