"""How many runs a tournament has and how long they take, before it is started.

A user's own script takes as long as it did when it was watched, or as the tournament's first trial did.
"""

import math
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.timing.summary import StepSums, mean_step_s
from vitprof.config import bounds
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.answers import is_of_script
from vitprof.experiments.tournament.planning import plan
from vitprof.store import RunQuery, RunStore, StoredRun
from vitprof.store.tournaments import StoredTournament, newest_runs

LOOKED_AT = 20
"""Runs of scripts, the newest first, among which one of the same command is looked for."""


@dataclass(frozen=True)
class TrialLength:
    """How long a trial of a script takes, as one of its runs shows."""

    run_id: int
    seconds: float


def size_words(spec: TournamentSpec, n_settings: int, time: str, seconds: float) -> str:
    """Returns how many runs a tournament has and how long they take, in a line.

    `time`: how long its planned rounds take, in words. `seconds`: the same, for rounds that may be added;
    NaN where it is not known.
    """
    runs = formats.count(n_settings * spec.repeats, "run")
    rounds = formats.count(spec.repeats, "round")
    words = f"{formats.count(n_settings, 'setting')} x {rounds} = {runs}, {time}"
    if not spec.until_decided or n_settings < 2:
        return words
    most = spec.repeats + bounds.MORE_ROUNDS
    longest = ""
    if math.isfinite(seconds):
        longest = f" (about {formats.rough_time(seconds * most / spec.repeats)})"
    return f"{words}; up to {most} rounds{longest} until it is decided"


def script_words(store: RunStore, tournament: StoredTournament) -> str:
    """Returns how many trials of a user's own script there are and how long they take, in a line; "" where
    there is nothing to compare the script with.

    Raises `StoreError`.
    """
    spec = tournament.spec
    script = spec.script
    n_settings = sum(not trial.refused for trial in plan(spec))
    if script is None or n_settings < 2:
        return ""
    length = _of_first_trial(store, tournament) or _of_watched(store, script, spec.base.steps or 1)
    if length is None:
        words = size_words(
            spec, n_settings, "for a time that is known after the first one", math.nan
        )
    else:
        seconds = length.seconds * n_settings * spec.repeats
        each = f"if each takes as long as run {length.run_id} ({formats.seconds(length.seconds)})"
        time = f"about {formats.rough_time(seconds)} {each}"
        words = size_words(spec, n_settings, time, seconds)
    if spec.seconds is not None:
        words += f"; none starts after {formats.seconds(spec.seconds)}"
    return words


def _of_first_trial(store: RunStore, tournament: StoredTournament) -> TrialLength | None:
    runs = newest_runs(store, tournament.id).get(UNCHANGED, {})
    for number in sorted(runs):
        run = store.run(runs[number].id)
        if run.status == "done" and run.summary is not None and math.isfinite(run.summary.wall_s):
            return TrialLength(run.id, run.summary.wall_s)
    return None


def _of_watched(store: RunStore, script: OwnScript, steps: int) -> TrialLength | None:
    """Returns how long a trial takes by the newest run of the same command that was watched; None without
    one. `steps`: those after which a trial ends.
    """
    query = RunQuery(filters={"strategy": (OWN_SCRIPT,), "status": ("done",)})
    for row in store.list_runs(query, limit=LOOKED_AT):
        run = store.run(row.id)
        if is_of_script(run, script):
            seconds = _trial_s(run, steps)
            if math.isfinite(seconds):
                return TrialLength(run.id, seconds)
    return None


def _trial_s(run: StoredRun, steps: int) -> float:
    """Returns how long a watched run took, without its steps beyond those of a trial; NaN if not known."""
    summary = run.summary
    if summary is None or not summary.n_steps:
        return math.nan
    n_more = summary.n_steps - steps
    if n_more <= 0:
        return summary.wall_s
    return max(0.0, summary.wall_s - n_more * mean_step_s(run.config, summary, StepSums()))
