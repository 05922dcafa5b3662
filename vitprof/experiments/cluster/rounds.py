"""A round of a tournament on one node: what a task of a cluster runs, with all results in the shared store."""

import functools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vitprof.config.availability import look_around
from vitprof.cores import NODE, node_name
from vitprof.errors import JobError, one_line
from vitprof.experiments.tournament.planning import PlannedTrial, plan, why_not_here
from vitprof.experiments.tournament.tournament_view import rotated
from vitprof.experiments.trials import Trial, job_manager, run_trials
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import newest_runs, tournament

PAUSE_CHECK_S = 1.0
"""How often (s) the store is asked whether the tournament was paused."""


def run_round(
    tournament_id: int, number: int, keys: Sequence[str], node: str, variables: Mapping[str, str]
) -> str:
    """Runs the settings `keys` of a round here, one after another, but for those that this node has done.

    `node`: this node's name; "": the host's. `variables`: for the environment, where they are not set
    here. Returns the reasons of the settings that cannot be run here, in lines of "key: reason". Raises
    `VitprofError`.
    """
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    if node:
        os.environ[NODE] = node
    store = RunStore()
    try:
        why_not = functools.partial(why_not_here, machine=look_around())
        spec = tournament(store, tournament_id).spec
        planned = {trial.key: trial for trial in plan(spec, why_not)}
        chosen = [planned[key] for key in rotated(keys, number)]
        able = [trial for trial in chosen if not trial.refused]
        with job_manager(store) as manager:
            trials = _remaining(store, tournament_id, number, able, node_name())
            group = tournament(store, tournament_id).group_key
            for _ in run_trials(manager, trials, group, stop=_Paused(store, tournament_id)):
                pass
        return "\n".join(f"{trial.key}: {trial.refused}" for trial in chosen if trial.refused)
    finally:
        store.close()


def run_round_of_file(tournament_id: int, number: int, keys: Sequence[str], path: str) -> str:
    """Does `run_round` on a node of which the host's name is known, with the variables in a file.

    That one has a password and is of this user alone, while a task's arguments are kept elsewhere.
    Raises `VitprofError`.
    """
    try:
        variables = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = "the tournament that this round is of has ended, or this node does not reach its home"
        raise JobError(f"{path} cannot be read ({one_line(error)}): {why}") from error
    return run_round(tournament_id, number, keys, "", variables)


def is_done_on(store: RunStore, tournament_id: int, key: str, number: int, node: str) -> bool:
    """Returns whether a setting's run of this round is done, on this node ("": on any)."""
    run = newest_runs(store, tournament_id).get(key, {}).get(number)
    if run is None or run.status != "done":
        return False
    return not node or store.run(run.id).environment.get("hostname") == node


def _remaining(
    store: RunStore, tournament_id: int, number: int, trials: Sequence[PlannedTrial], node: str
) -> Iterator[Trial]:
    for trial in trials:
        # what another node has done is run again: a round has one node
        if not is_done_on(store, tournament_id, trial.key, number, node):
            yield Trial(trial.config, role_of(trial.key, number), trial.key)


class _Paused:
    """Whether a tournament is no longer running, asked at most every `PAUSE_CHECK_S`."""

    def __init__(self, store: RunStore, tournament_id: int) -> None:
        self._store = store
        self._id = tournament_id
        self._is_paused = False
        self._look_at_s = 0.0

    def __call__(self) -> bool:
        if time.monotonic() >= self._look_at_s:
            self._is_paused = tournament(self._store, self._id).status != "running"
            self._look_at_s = time.monotonic() + PAUSE_CHECK_S
        return self._is_paused
