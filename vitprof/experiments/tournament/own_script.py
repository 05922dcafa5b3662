"""Tournaments on a user's own script: the first trial, and what the others need from it.

The first trial is the script as it is. It shows which DataLoader is the train loader and what the script writes; the
user then agrees that the script is repeated. The other trials change the arguments of that loader as it is constructed
(`vitprof.watch`).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from vitprof import home
from vitprof.config.own_script import UNCHANGED, OwnScript, OwnSetting, with_loader
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import StoreError
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.jobs.command import Trial, TrialRunner
from vitprof.jobs.runners import Runner
from vitprof.program import program
from vitprof.store import RunStore
from vitprof.store.tournaments import set_spec, tournament

CACHE_SHARE = 0.5
"""Share of the free memory for samples that are kept; the rest is for additional workers and batches."""
MOST_WRITES = 1000
"""The most names of written files that the store keeps."""
WRITES_NAMED = 4
"""The most written files that a line names."""
IGNORED = ("__pycache__", ".git")
"""Folders that are not searched: what is written there does not matter to the user, such as byte code."""
MOST_FILES, MOST_S = 300_000, 20.0
"""The most files that are checked, and the most seconds: a folder of samples can have millions."""
CLOCK_S = 0.05
"""Tolerance for the times of files, whose clock advances only every few milliseconds."""


def start_trial(
    spec: TournamentSpec, planned: PlannedTrial, number: int, opened: list[str] | None = None
) -> Callable[[Path], Runner]:
    """Returns a function that starts a trial of the script, given the file for what the script prints.

    `number` counts the starts of the script, from 1. Files that it opens for writing are added to `opened`.
    """
    script, setting = _own(spec), planned.setting or OwnSetting(UNCHANGED)
    loader = script.loader or {}
    trial = Trial(
        command=script.command,
        directory=script.directory,
        number=number,
        steps=spec.base.steps or 1,
        arguments=setting.arguments,
        place=loader.get("made_place", ""),
        where=loader.get("made_where", ""),
        nth=None if loader.get("made_alone", True) else loader.get("made_nth"),
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
    seen = with_loader(spec.base, run.environment)
    base = dataclasses.replace(spec.base, dataset=seen.dataset, device=seen.device, batch_size=seen.batch_size)
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


def written_since(folder: Path, since_s: float) -> tuple[list[str], bool]:
    """Returns the files below `folder` that were made or changed since `since_s` (`time.time()`), relative to it, and
    whether all files were checked.

    It goes by ctime, which programs cannot set, so it also finds files that a C library wrote and files that replaced
    others. vitprof's own files, byte code and `.git` are ignored.
    """
    written: list[str] = []
    own, until, n = home.home().resolve(), time.monotonic() + MOST_S, 0
    folders = [folder.resolve()]
    while folders:
        here = folders.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:  # such as a folder that this user may not read
            continue
        for entry in entries:
            n += 1
            if n > MOST_FILES or (n % 1000 == 0 and time.monotonic() > until):
                return written, False
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in IGNORED and Path(entry.path) != own:
                        folders.append(Path(entry.path))
                elif entry.stat(follow_symlinks=False).st_ctime >= since_s - CLOCK_S:
                    written.append(os.path.relpath(entry.path, folder.resolve()))
            except OSError:  # gone meanwhile
                continue
    return written, True
