"""From a bundle into the store: all of it, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.errors import VitprofError, one_line
from vitprof.export.bundle.archive import MAX_UNPACKED_BYTES, Archive, BundleError, from_json
from vitprof.export.bundle.run_values import IMPORTED, BundledRun, from_values
from vitprof.export.bundle.series import steps_of, telemetry_of
from vitprof.formats import size
from vitprof.jobs.supervisor import spark
from vitprof.records import LIVE_STATUSES, STEP_COLUMNS, TELEMETRY_COLUMNS, Phase
from vitprof.store import RunStore
from vitprof.store.run_store import MADE_FOR_A_RUN
from vitprof.store.schema import runs

MOST_BESIDE_A_JOB = 200_000
"""Rows, of steps and telemetry, whose storing takes about a second of CPU."""
AT_ONCE = 500
"""Values of an IN clause; old SQLite takes 999."""


@dataclass(frozen=True)
class ImportedRun:
    """A run of the bundle, as it is here now."""

    id: int
    name: str
    already: bool
    """It had been here before, and was left as it is."""
    helper: bool
    """It belongs to another run, such as an anchor of its headroom."""


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    runs: tuple[ImportedRun, ...]
    left_out: int = 0
    """Runs that were made for one that is here already: they would change what is told of it."""

    @property
    def new(self) -> tuple[ImportedRun, ...]:
        return tuple(run for run in self.runs if not run.already)

    @property
    def sentence(self) -> str:
        """In words: what is new, and what was here already."""
        own = [run for run in self.new if not run.helper]
        helpers = len(self.new) - len(own)
        already = [run for run in self.runs if run.already and not run.helper]
        said = []
        if own:
            said.append(f"{_count(own)} imported as {_numbers(own)}")
        if helpers:
            said.append(f"{helpers} measured for headroom came with {'it' if len(own) == 1 else 'them'}")
        if already:
            said.append(f"{_count(already)} {_were(len(already))} here already: {_numbers(already)}")
        if self.left_out:
            whose = "a run that is" if self.left_out == 1 else "runs that are"
            said.append(f"{self.left_out} measured for {whose} here already {_were(self.left_out)} left out")
        return "; ".join(said) or "everything in the file was here already"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _count(found: Sequence[ImportedRun]) -> str:
    return f"{len(found)} {'run' if len(found) == 1 else 'runs'}"


def _numbers(found: Sequence[ImportedRun]) -> str:
    ids = [str(run.id) for run in found]
    shown = ids if len(ids) <= 6 else [*ids[:3], "...", ids[-1]]
    return f"run {ids[0]}" if len(ids) == 1 else f"runs {', '.join(shown)}"


@dataclass(frozen=True)
class _Sound:
    """A run of a bundle, all of it checked."""

    about: BundledRun
    steps: Series
    telemetry: Series
    values: dict[str, Any]


def import_bundle(store: RunStore, source: Path | BinaryIO) -> Imported:
    """Take the runs of a bundle into `store`, with new numbers. Those that are here already are left out.

    Raises `BundleError` where anything in the file is not as vitprof writes it, `StoreError` where the store fails;
    nothing is stored then.
    """
    with _opened(source) as (name, file):
        try:
            found = _read(Archive(file))
        except BundleError as error:
            raise BundleError(f"{name} was not imported: {one_line(error)}") from error
        except MemoryError as error:
            raise BundleError(f"{name} was not imported: there is too little memory to open it") from error
    _check_patience(store, found)
    with store.transaction() as db:
        return _store(store, db, found)


def _check_patience(store: RunStore, found: Sequence[_Sound]) -> None:
    """A job that records itself waits 10 s for its turn to write, then it is given up. Raises `BundleError`."""
    if sum(run.about.n_steps + run.about.n_telemetry for run in found) > MOST_BESIDE_A_JOB:
        live = store.runs(LIVE_STATUSES, limit=1)
        if live:
            raise BundleError(
                f"the file is so large that run {live[0].id} could not be recorded meanwhile; import it after that"
            )


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    if not isinstance(source, Path):
        yield "the file", source
        return
    try:
        file = source.open("rb")
        if not source.is_file():  # a pipe cannot be read from its end
            file.close()
            raise BundleError(f"{source} is a device or a pipe; give a file")
    except OSError as error:
        raise BundleError(f"{source} cannot be read: {error.strerror or error}") from error
    with file:
        yield str(source), file


def _read(archive: Archive) -> list[_Sound]:
    """Every run, checked. Raises `BundleError`."""
    found: list[_Sound] = []
    n_bytes = 0
    for n in range(1, archive.n_runs + 1):
        about = from_values(from_json(archive.read(f"run-{n}.json"), f"run-{n}.json"), f"run-{n}.json")
        # As it will be here, with the columns that the file does not have: each row is stored in full.
        n_bytes += 8 * (about.n_steps * len(STEP_COLUMNS) + about.n_telemetry * len(TELEMETRY_COLUMNS))
        if n_bytes > MAX_UNPACKED_BYTES:
            raise BundleError(f"it has more steps and telemetry than the {size(MAX_UNPACKED_BYTES)} that are allowed")
        steps = steps_of(about, archive.read(f"steps-{n}.f64"), f"steps-{n}.f64")
        telemetry = telemetry_of(about, archive.read(f"telemetry-{n}.f64"), f"telemetry-{n}.f64")
        found.append(_Sound(about, steps, telemetry, about.values | _findings(about, steps, telemetry, f"run-{n}")))
    if len({run.about.run_id for run in found}) < len(found) or len({_identity(r) for r in found}) < len(found):
        raise BundleError("it holds the same run twice")
    return found


def _findings(run: BundledRun, steps: Series, telemetry: Series, what: str) -> dict[str, Any]:
    """Verdict and sparkline, worked out here: a sender cannot make them up. Raises `BundleError`."""
    phases = [Phase(*phase) for phase in run.values["phases"]]
    facts = run.values["environment"] | run.values["facts"]
    try:
        verdict = judge(run.config, steps, phases, telemetry, facts, possible=can_run) if run.judged else None
        return {"verdict": verdict and verdict.to_dict(), "spark": spark(steps, phases)}
    except (VitprofError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BundleError(f"{what}: its steps do not make sense ({one_line(error)})") from error


def _identity(run: _Sound) -> tuple[object, ...]:
    """What tells that two runs are the same: who made it, its number there, and when."""
    about = run.about
    return about.host, about.origin_id, about.values["created_utc"], about.values["t_origin_s"]


def _here(db: sa.Connection, found: Sequence[_Sound]) -> dict[tuple[object, ...], int]:
    """Identity -> number of the runs of this store that were made in the same seconds as those of a bundle."""
    moments = sorted({run.values["created_utc"] for run in found})
    here: dict[tuple[object, ...], int] = {}
    for first in range(0, len(moments), AT_ONCE):
        query = sa.select(runs.c.id, runs.c.created_utc, runs.c.t_origin_s, runs.c.owner_host, runs.c.facts)
        for row in db.execute(query.where(runs.c.created_utc.in_(moments[first : first + AT_ONCE]))):
            made = (row.facts or {}).get(IMPORTED) or {"host": row.owner_host, "run_id": row.id}
            here[made.get("host"), made.get("run_id"), row.created_utc, row.t_origin_s] = row.id
    return here


def _store(store: RunStore, db: sa.Connection, found: Sequence[_Sound]) -> Imported:
    """Runs that others were made for come first, so that the others can refer to their new numbers."""
    here = _here(db, found)
    waiting, done = list(found), set[int]()
    new_ids: dict[int, int] = {}
    results: dict[int, ImportedRun] = {}
    in_bundle = {run.about.run_id for run in found}
    as_it_was: set[int] = set()
    left_out = 0
    while waiting:
        ready = [run for run in waiting if _parent(run) not in in_bundle or _parent(run) in done]
        for run in ready or waiting:  # in a circle, nobody is made for anybody
            about, known = run.about, here.get(_identity(run))
            parent = new_ids.get(_parent(run))
            kind = about.group_key.partition(":")[0]
            if known is None and _parent(run) in as_it_was:  # nothing in a file changes a run that is here
                as_it_was.add(about.run_id)
                left_out += 1
                continue
            if known is None:
                group = {"group_key": f"{kind}:{parent}", "role": about.role} if parent else {}
                run_id = store.insert_run(
                    run.values | group, steps=run.steps, telemetry=run.telemetry, tags=about.tags, within=db
                )
            else:
                run_id = known
                as_it_was.add(about.run_id)
            new_ids[about.run_id] = run_id
            name = about.values["name"]
            results[about.run_id] = ImportedRun(run_id, name, already=known is not None, helper=parent is not None)
        done = set(new_ids) | as_it_was
        waiting = [run for run in waiting if run.about.run_id not in done]
    return Imported(tuple(results[r.about.run_id] for r in found if r.about.run_id in results), left_out)


def _parent(run: _Sound) -> int:
    """The number, where the bundle was written, of the run that this one was made for; 0 for one of its own."""
    kind, _, number = run.about.group_key.partition(":")
    return int(number) if kind in MADE_FOR_A_RUN else 0
