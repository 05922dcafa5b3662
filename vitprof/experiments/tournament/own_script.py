"""Tournaments on a user's own script: the first trial, and what the others need from it.

The first trial is the script as it is. It shows which DataLoader is the train loader and what the script writes; the
user then agrees that the script is repeated. The other trials change the arguments of that loader as it is constructed
(`vitprof.watch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from vitprof.config.own_script import with_loader
from vitprof.config.own_script_trials import UNCHANGED, OwnScript, OwnSetting
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import StoreError
from vitprof.experiments.tournament.changed_files import written_since
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.jobs.runners import Runner
from vitprof.jobs.trial import Trial, TrialRunner
from vitprof.program import program
from vitprof.store import RunStore
from vitprof.store.tournaments import set_spec, tournament

CACHE_SHARE = 0.5
"""Share of the free memory for samples that are kept; the rest is for additional workers and batches."""
MOST_WRITES = 1000
"""The most names of written files that the store keeps."""
WRITES_NAMED = 4
"""The most written files that a line names."""


def start_trial(
    spec: TournamentSpec, planned: PlannedTrial, number: int, opened: list[str] | None = None
) -> Callable[[Path], Runner]:
    """Returns a function that starts a trial of the script, given the file for what the script prints.

    `number` counts the starts of the script, from 1. Files that it opens for writing are added to `opened`.
    """
    script, setting = _own(spec), planned.setting or OwnSetting(UNCHANGED)
    made = script.loader or {}
    trial = Trial(
        command=script.command,
        directory=script.directory,
        number=number,
        steps=spec.base.steps or 1,
        arguments=setting.arguments,
        place=made.get("made_place", ""),
        where=made.get("made_where", ""),
        nth=None if made.get("made_alone", True) else made.get("made_nth"),
        cache_bytes=int(psutil.virtual_memory().available * CACHE_SHARE) if setting.keeps_samples else None,
        remarks=setting.remarks,
        lists_opened=opened is not None,
    )
    return lambda log: TrialRunner(trial, log, opened)


def learn(store: RunStore, tournament_id: int, run_id: int, opened: list[str], began_s: float) -> None:
    """Stores what the first trial showed: the train loader, and the files written since `began_s` (`time.time()`).

    Raises `StoreError`.
    """
    spec, run = tournament(store, tournament_id).spec, store.run(run_id)
    script = _own(spec)
    written, whole = written_since(Path(script.directory), began_s)
    files = sorted({*opened, *written})[:MOST_WRITES]
    if not whole:
        files.append("(and perhaps more: there are too many files to check all of them)")
    known = dataclasses.replace(script, loader=dict(run.environment.get("watched") or {}), writes=tuple(files))
    told = with_loader(spec.base, run.environment)
    base = dataclasses.replace(spec.base, dataset=told.dataset, device=told.device, batch_size=told.batch_size)
    set_spec(store, tournament_id, dataclasses.replace(spec, script=known, base=base))


def to_be_agreed(tournament_id: int, script: OwnScript) -> str:
    """Returns why a tournament waits after its first trial, and how to continue it."""
    return f"{written_words(script)}; agree that the script is repeated: {resume_command(tournament_id)} --yes"


def written_words(script: OwnScript) -> str:
    """Returns what the first trial wrote, in a line."""
    if not script.writes:
        return f"the first trial wrote no file under {script.directory}"
    few = ", ".join(script.writes[:WRITES_NAMED])
    more = f" and {len(script.writes) - WRITES_NAMED} more" if len(script.writes) > WRITES_NAMED else ""
    n = "1 file" if len(script.writes) == 1 else f"{len(script.writes)} files"
    return f"the first trial wrote {n} under {script.directory}: {few}{more}"


def resume_command(tournament_id: int) -> str:
    """Returns the command that resumes a tournament."""
    return f"{program()} tournament --resume {tournament_id}"


def nothing_to_compare(planned: Sequence[PlannedTrial]) -> str:
    """Returns why no setting can run but the script as it is."""
    remarks = [*(planned[0].setting.remarks if planned[0].setting else ()), *(t.refused for t in planned[1:])]
    why = "; ".join(dict.fromkeys(remarks)) or "the requested settings are the script's own"
    return f"nothing to compare the script with: {why}"


def agree(store: RunStore, tournament_id: int) -> None:
    """Records that the user agrees that the script is repeated. Raises `StoreError`."""
    spec = tournament(store, tournament_id).spec
    set_spec(store, tournament_id, dataclasses.replace(spec, script=dataclasses.replace(_own(spec), agreed=True)))


def _own(spec: TournamentSpec) -> OwnScript:
    if spec.script is None:
        raise StoreError("this tournament does not run a script of your own")
    return spec.script
