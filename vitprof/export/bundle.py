"""Bundles: runs as one file that another store imports (`vitprof.recording.archive`). All is checked first, then stored
in one transaction. The verdict is judged again from the steps, for this machine.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitprof import errors, export, formats, names
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.export.ranks import apart, join_imported, steps_of_all
from vitprof.jobs.finalise import spark
from vitprof.recording import archive
from vitprof.recording.archive import (
    EXPORT_FEWER,
    MAX_FILE_BYTES,
    MAX_RUNS,
    SUFFIX,
    ArchiveError,
    need,
)
from vitprof.recording.columns import LIVE_STATUSES, STARTED_BY
from vitprof.recording.recording import Columns, Recording
from vitprof.store import MAX_NOTE, RunGroup, RunStore, StoredRun
from vitprof.store.run_store import RunImport, checked_note, checked_tags, importing

__all__ = [
    "MAX_FILE_BYTES",
    "SUFFIX",
    "bundle_bytes",
    "import_bundle",
    "read_bundle",
    "write_bundle",
]

IMPORTED = "imported"
"""The fact that says where a run was recorded: {"host", "run_id"}. All runs of a bundle have it."""
MAX_ROWS_BESIDE_A_JOB = 200_000
"""The most rows of steps and telemetry that are stored while a job runs: they take about a second of CPU."""
MAX_TAGS = 100

Identity = tuple[object, ...]


def identity(run: Recording, host: str = "") -> Identity:
    made = run.facts.get(IMPORTED) or {"host": host, "run_id": run.run_id}
    return made["host"], made["run_id"], run.created_utc, run.t_origin_s


def bundle_bytes(store: RunStore, run_ids: Sequence[int]) -> bytes:
    """Returns the bundle of these runs and of the anchors of their headroom. Raises `ArchiveError`, `StoreError`."""
    found: dict[int, StoredRun] = {}
    wanted = dict.fromkeys(run_ids)
    need(
        len(wanted) <= MAX_RUNS,
        f"{len(wanted):,} runs are too many; a file may hold {MAX_RUNS:,}; {EXPORT_FEWER}",
    )
    for run_id in wanted:
        found[run_id] = store.run(run_id)
        unfinished = (
            f"run {run_id} is still going on; wait for it to end, or stop it, and then export it"
        )
        need(not found[run_id].live, unfinished)
    need(found, "there is nothing to export; give at least one run")
    for run_id in list(found):
        anchors = store.runs(group_key=RunGroup("headroom", run_id).key)
        found |= {run.id: run for run in anchors if not run.live and run.id not in found}
    return archive.pack(_whole(store, found[run_id]) for run_id in sorted(found))


def _whole(store: RunStore, run: StoredRun) -> Recording:
    origin = run.facts.get(IMPORTED) or {"host": run.owner_host, "run_id": run.id}
    facts = {name: value for name, value in run.facts.items() if name != STARTED_BY} | {
        IMPORTED: origin
    }
    tags = sorted({kept for tag in store.tags(run.id) if (kept := names.tamed_name(tag))})[
        :MAX_TAGS
    ]
    whole = dataclasses.replace(
        run, steps=steps_of_all(store, run.id), telemetry=store.telemetry(run.id)
    )
    return dataclasses.replace(whole, facts=facts, tags=tuple(tags), note=run.note[:MAX_NOTE])


def write_bundle(store: RunStore, run_ids: Sequence[int], path: Path) -> None:
    export.write_bytes(path, bundle_bytes(store, run_ids))


class RunInFile(NamedTuple):
    """A run of a bundle, all of it checked."""

    recording: Recording
    renamed: bool
    """Whether it has another name in the file."""
    spark: list[float | None]
    ranks: Columns | None = None
    """Steps of its other ranks."""

    @property
    def parent(self) -> int:
        """Returns the id, where the bundle was written, of the run that this one was made for; 0 if there is none."""
        group = RunGroup.parse(self.recording.group_key)
        return (group and group.run_id) or 0


@dataclasses.dataclass(frozen=True)
class ImportedRun:
    """A run of the bundle, as it is in the store now."""

    run_id: int
    """Its number in this store."""
    name: str
    """Its name."""
    already_here: bool
    """Whether the store had it already, so that it was left as it is."""
    helper: bool
    """Whether it belongs to another run, such as an anchor of its headroom."""


@dataclasses.dataclass(frozen=True)
class Imported:
    """The result of an import."""

    runs: tuple[ImportedRun, ...]
    skipped: int = 0
    """Runs left out because the run that they were made for was in the store already: they would change its results."""
    renamed: int = 0
    """New runs that got another name, because theirs had line ends or characters that cannot be shown."""
    joined: str = ""
    """A line about new runs that are parts of others' now, as they are of one job's nodes."""

    @property
    def new(self) -> tuple[ImportedRun, ...]:
        return tuple(run for run in self.runs if not run.already_here)

    @property
    def sentence(self) -> str:
        own = [run.run_id for run in self.new if not run.helper]
        already = [run.run_id for run in self.runs if run.already_here and not run.helper]
        parts = (
            own and f"{formats.count(len(own), 'run')} imported as {_numbers(own)}",
            len(self.new) > len(own) and f"measured for headroom: {len(self.new) - len(own)}",
            already and f"here already: {_numbers(already)}",
            self.skipped
            and f"left out, since they were measured for runs that are here: {self.skipped}",
            self.joined,
            self.renamed
            and f"renamed, since what they were called cannot be shown: {self.renamed}",
        )
        return (
            "; ".join(str(part) for part in parts if part)
            or "everything in the file was here already"
        )


def _numbers(ids: Sequence[int]) -> str:
    shown = ids if len(ids) <= 6 else [*ids[:3], "...", ids[-1]]
    return f"{'run' if len(ids) == 1 else 'runs'} {', '.join(map(str, shown))}"


def import_bundle(store: RunStore, source: Path | BinaryIO) -> Imported:
    """Imports the runs of a bundle that are not in `store` yet, with new ids. Raises `ArchiveError` where anything in
    the file is not as vitprof writes it, `StoreError` where the store fails; nothing is stored then.
    """
    found = read_bundle(source, "imported", judged=True)
    rows = sum(
        len(series["step" if "step" in series else "seq"])
        for run in found
        for series in _series(run.recording)
    )
    if rows > MAX_ROWS_BESIDE_A_JOB and (
        live := store.runs(LIVE_STATUSES, limit=1)
    ):  # its job waits 10 s to write
        busy = f"while run {live[0].id} is being recorded; import it after that run"
        raise ArchiveError(f"the file is too large to import {busy}")
    with importing(store) as into:
        came = _insert(into, found)
    joined, parts = join_imported(store, [run.run_id for run in came.new])
    return dataclasses.replace(
        came, joined=joined, runs=tuple(run for run in came.runs if run.run_id not in parts)
    )


def read_bundle(source: Path | BinaryIO, purpose: str, *, judged: bool = False) -> list[RunInFile]:
    """Returns a bundle's checked runs, with verdicts if `judged`. Raises `ArchiveError`, by `purpose`."""
    with _opened(source) as (name, file):
        try:
            found = [_in_file(recording, judged) for recording in archive.unpack(file)]
            for keys in (
                {run.recording.run_id for run in found},
                {identity(run.recording) for run in found},
            ):
                need(len(keys) == len(found), "it holds the same run twice")
        except errors.VitprofError as error:
            raise ArchiveError(f"{name} was not {purpose}: {errors.one_line(error)}") from error
        except MemoryError as error:
            raise ArchiveError(
                f"{name} was not {purpose}: there is too little memory to open it"
            ) from error
    return found


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    if not isinstance(source, Path):
        yield "the file", source
        return
    try:
        if (
            source.exists() and not source.is_file() and not source.is_dir()
        ):  # opening a pipe waits for its writer
            raise ArchiveError(f"{source} is a device or a pipe; give a file")
        file = source.open("rb")
    except OSError as error:
        raise ArchiveError(f"{source} cannot be read: {error.strerror or error}") from error
    with file:
        yield str(source), file


def _series(run: Recording) -> tuple[Columns, Columns]:
    return run.steps or {}, run.telemetry or {}


def _in_file(run: Recording, judged: bool) -> RunInFile:
    need(
        not run.group_key or RunGroup.parse(run.group_key) is not None,
        "group_key is not as vitprof writes it",
    )
    need(
        len(run.tags) <= MAX_TAGS and checked_tags(run.tags) == set(run.tags),
        "tags are not as vitprof writes them",
    )
    checked_note(run.note)
    name = names.tamed_name(run.name) or names.UNNAMED
    steps, ranks = apart(run.steps) if run.steps else (run.steps, None)
    run, renamed = dataclasses.replace(run, name=name, steps=steps), name != run.name
    if not judged:
        return RunInFile(run, renamed, [])
    verdict, (steps, telemetry), facts = None, _series(run), run.environment | run.facts
    try:  # made here, so that a sender cannot invent them
        if run.verdict is not None:
            verdict = judge(run.config, steps, run.phases, telemetry, facts, possible=can_run)
        idle = spark(steps, run.phases)
    except (errors.VitprofError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"run {run.run_id}: its steps do not make sense ({errors.one_line(error)})"
        ) from error
    return RunInFile(dataclasses.replace(run, verdict=verdict), renamed, idle, ranks)


def _insert(into: RunImport, found: Sequence[RunInFile]) -> Imported:
    """Stores the new runs, a run before those made for it: its id is lower; without it they are runs of their own."""
    moments = {run.recording.created_utc for run in found}
    here = {identity(run, run.owner_host): run.run_id for run in into.recorded_in(moments)}
    new_ids: dict[int, int] = {}
    as_it_was = set[int]()
    results = list[ImportedRun]()
    skipped = renamed = 0
    for run in found:
        about = run.recording
        known = here.get(identity(run.recording))
        parent = new_ids.get(run.parent)
        if (
            known is None and run.parent in as_it_was
        ):  # nothing in a file changes a run that is here
            as_it_was.add(about.run_id)
            skipped += 1
            continue
        if known is not None:
            as_it_was.add(about.run_id)
        run_id = known or _insert_run(into, run, parent)
        renamed += run.renamed and known is None
        new_ids[about.run_id] = run_id
        results.append(
            ImportedRun(
                run_id, about.name, already_here=known is not None, helper=parent is not None
            )
        )
    return Imported(tuple(results), skipped, renamed)


def _insert_run(into: RunImport, found: RunInFile, parent: int | None) -> int:
    run = found.recording
    group = RunGroup.parse(run.group_key)
    (steps, telemetry) = _series(run)
    same = (
        "name",
        "status",
        "created_utc",
        "t_origin_s",
        "training_since_s",
        "environment",
        "facts",
        "note",
    )
    values = {name: getattr(run, name) for name in (*same, "config", "phases", "summary")}
    values |= {"notices": list(run.notices), "spark": found.spark, "error": run.error or ""}
    values["verdict"] = run.verdict.to_dict() if run.verdict else None
    if group and parent:
        values |= {"group_key": RunGroup(group.kind, parent).key, "role": run.role}
    return into.insert(values, steps=steps, telemetry=telemetry, ranks=found.ranks, tags=run.tags)
