"""Bundles: runs of the store as one file that another store imports, see
`vitprof.recording.archive`.

Everything is checked before anything is stored. Then all of it is stored in one transaction, or
nothing. The verdict is judged again from the steps, for this machine.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitprof import errors, export, formats, names
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.datasets.own import registry
from vitprof.export.rank_steps import apart, join_imported, steps_of_all
from vitprof.jobs.finalise import spark
from vitprof.masking import masked
from vitprof.recording import archive
from vitprof.recording.archive import (
    EXPORT_FEWER,
    MAX_FILE_BYTES,
    MAX_RUNS,
    SUFFIX,
    ArchiveError,
    need,
)
from vitprof.recording.columns import LIVE_STATUSES, STARTED_BY, RunSummary
from vitprof.recording.recording import Columns, Recording
from vitprof.store import MAX_NOTE, RunGroup, RunStore, StoredRun
from vitprof.store.nodes import PossiblePart
from vitprof.store.run_store import RunImport, checked_note, checked_tags, importing
from vitprof.store.stored_run import OF_A_PREDICTION, OF_A_SEARCH

__all__ = [
    "MAX_FILE_BYTES",
    "SUFFIX",
    "bundle_bytes",
    "import_bundle",
    "join_imported",
    "read_bundle",
    "write_bundle",
]

IMPORTED = "imported"
"""The fact that says where a run was recorded: {"host", "run_id"}. All runs of a bundle have it."""
MAX_ROWS_DURING_A_JOB = 200_000
"""The most rows of steps and telemetry that are stored while a job runs: they take about a second
of CPU."""
MAX_TAGS = 100
MOST_LISTED = 6
"""Ids of runs that are all named; of more, the first three and the last."""

Identity = tuple[object, ...]


def identity(run: Recording, host: str = "") -> Identity:
    """Returns what identifies a run in every store: the host that recorded it, its id there, and
    when.

    `host` is the host of the store that it is from.
    """
    made = run.facts.get(IMPORTED) or {"host": host, "run_id": run.run_id}
    return made["host"], made["run_id"], run.created_utc, run.t_origin_s


def bundle_bytes(store: RunStore, run_ids: Sequence[int]) -> bytes:
    """Returns the bundle of these runs and of the anchors that their headroom was measured with.

    Raises `ArchiveError` for a run that has not ended and for more than a bundle may hold,
    `StoreError` for a run that does not exist.
    """
    runs: dict[int, StoredRun] = {}
    wanted = dict.fromkeys(run_ids)
    need(
        len(wanted) <= MAX_RUNS,
        f"{len(wanted):,} runs are too many; a file may hold {MAX_RUNS:,}; {EXPORT_FEWER}",
    )
    for run_id in wanted:
        runs[run_id] = store.run(run_id)
        unfinished = (
            f"run {run_id} is still going on; wait for it to end, or stop it, and then export it"
        )
        need(not runs[run_id].live, unfinished)
    need(runs, "there is nothing to export; give at least one run")
    for run_id in list(runs):
        anchors = store.runs(group_key=RunGroup("headroom", run_id).key)
        runs |= {run.id: run for run in anchors if not run.live and run.id not in runs}
    return archive.pack(_whole(store, runs[run_id]) for run_id in sorted(runs))


def _whole(store: RunStore, run: StoredRun) -> Recording:
    """Returns a run with its series, without what belongs to its store alone."""
    origin = run.facts.get(IMPORTED) or {"host": run.owner_host, "run_id": run.id}
    facts = {name: value for name, value in run.facts.items() if name != STARTED_BY}
    facts[IMPORTED] = origin
    own = facts.get("own_set")
    if isinstance(own, dict):
        # runs of earlier versions have it as it was typed
        facts["own_set"] = own | {"spec": masked(str(own.get("spec", "")))}
    # What cannot be shown is taken out; a tag of nothing else is left out.
    shown = {names.tamed_name(tag) for tag in store.tags(run.id)} - {""}
    tags = sorted(shown)[:MAX_TAGS]
    whole = dataclasses.replace(
        run, steps=steps_of_all(store, run.id), telemetry=store.telemetry(run.id)
    )
    return dataclasses.replace(whole, facts=facts, tags=tuple(tags), note=run.note[:MAX_NOTE])


def write_bundle(store: RunStore, run_ids: Sequence[int], path: Path) -> None:
    """Writes `bundle_bytes` to a file, whole or not at all. Raises `VitprofError`."""
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
        """Returns the id, where the bundle was written, of the run that this one was made for; 0 if
        there is none.
        """
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
    """Runs left out because the run that they were made for was in the store already: they would
    change its results."""
    renamed: int = 0
    """New runs that got another name, because theirs had line ends or characters that cannot be
    shown."""
    joined: str = ""
    """A line about new runs that are parts of others' now, as they are of one job's nodes."""
    possible: tuple[PossiblePart, ...] = ()
    """New runs that may be parts of others', which no id says: a person is asked, see `join_imported`."""

    @property
    def new(self) -> tuple[ImportedRun, ...]:
        """Returns the runs that were not in the store before."""
        return tuple(run for run in self.runs if not run.already_here)

    @property
    def sentence(self) -> str:
        """Returns in words what is new, and what was in the store already."""
        own = [run.run_id for run in self.new if not run.helper]
        already = [run.run_id for run in self.runs if run.already_here and not run.helper]
        helpers = len(self.new) - len(own)
        parts = []
        if own:
            parts.append(f"{formats.count(len(own), 'run')} imported as {_numbers(own)}")
        if helpers:
            parts.append(f"{formats.count(helpers, 'run')} of headroom with them")
        if already:
            parts.append(f"here already: {_numbers(already)}")
        if self.skipped:
            why = "left out, since they were measured for runs that are here"
            parts.append(f"{why}: {self.skipped}")
        if self.joined:
            parts.append(self.joined)
        if self.renamed:
            parts.append(f"renamed, since what they were called cannot be shown: {self.renamed}")
        return "; ".join(parts) or "everything in the file was here already"


def _numbers(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"run {ids[0]}"
    shown = [str(run_id) for run_id in ids]
    if len(ids) > MOST_LISTED:
        shown = [*shown[:3], "...", shown[-1]]
    return f"runs {', '.join(shown)}"


def import_bundle(
    store: RunStore, source: Path | BinaryIO, *, join_unsure: bool = False
) -> Imported:
    """Imports the runs of a bundle into `store`, with new ids.

    Runs that are there already are left as they are. Runs of one job's nodes become one; with
    `join_unsure` also those that no id says so of.

    Raises `ArchiveError` where anything in the file is not as vitprof writes it, `StoreError` where
    the store fails; nothing is stored then.
    """
    with registry.guests():
        return _imported(store, source, join_unsure=join_unsure)


def _imported(store: RunStore, source: Path | BinaryIO, *, join_unsure: bool) -> Imported:
    runs = read_bundle(source, "imported", judged=True)
    n_rows = 0
    for run in runs:
        steps, telemetry = _series(run.recording)
        n_rows += len(steps["step"]) + len(telemetry["seq"])
    if n_rows > MAX_ROWS_DURING_A_JOB:
        # A running job waits 10 s at most to write its own rows.
        live = store.runs(LIVE_STATUSES, limit=1)
        if live:
            busy = f"while run {live[0].id} is being recorded; import it after that run"
            raise ArchiveError(f"the file is too large to import {busy}")
    with importing(store) as into:
        came = _insert(into, runs)
    # Who says so afterwards means those that are here by then.
    to_join = came.runs if join_unsure else came.new
    joined = join_imported(store, [run.run_id for run in to_join], unsure=join_unsure)
    remaining = tuple(run for run in came.runs if run.run_id not in joined.parts)
    return dataclasses.replace(came, joined=joined.line, possible=joined.possible, runs=remaining)


def read_bundle(source: Path | BinaryIO, purpose: str, *, judged: bool = False) -> list[RunInFile]:
    """Returns the runs of a bundle, all of it checked, and stores nothing; with `judged`, each with
    a verdict of here. Who looks up their data sets later calls this within `registry.guests`.

    Raises `ArchiveError`, which says that the file was not `purpose`, such as "imported", and why.
    """
    with _opened(source) as (name, file), registry.guests():
        try:
            runs = [_in_file(recording, judged) for recording in archive.unpack(file)]
            ids = {run.recording.run_id for run in runs}
            identities = {identity(run.recording) for run in runs}
            distinct = len(ids) == len(identities) == len(runs)
            need(distinct, "it holds the same run twice")
        except errors.VitprofError as error:
            raise ArchiveError(f"{name} was not {purpose}: {errors.one_line(error)}") from error
        except MemoryError as error:
            raise ArchiveError(
                f"{name} was not {purpose}: there is too little memory to open it"
            ) from error
    return runs


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    if not isinstance(source, Path):
        yield "the file", source
        return
    try:
        # Opening a pipe would wait for its writer.
        if source.exists() and not source.is_file() and not source.is_dir():
            raise ArchiveError(f"{source} is a device or a pipe; give a file")
        file = source.open("rb")
    except OSError as error:
        raise ArchiveError(f"{source} cannot be read: {error.strerror or error}") from error
    with file:
        yield str(source), file


def _series(run: Recording) -> tuple[Columns, Columns]:
    return run.steps or {}, run.telemetry or {}


def _in_file(run: Recording, judged: bool) -> RunInFile:
    """Returns a run as this store would have it.

    Raises `VitprofError` for what the store would not take.
    """
    key = run.group_key
    of_an_earlier_version = key.startswith((OF_A_SEARCH, OF_A_PREDICTION))
    is_known = not key or RunGroup.parse(key) is not None or of_an_earlier_version
    need(is_known, "group_key is not as vitprof writes it")
    need(
        len(run.tags) <= MAX_TAGS and checked_tags(run.tags) == set(run.tags),
        "tags are not as vitprof writes them",
    )
    checked_note(run.note)
    name = names.tamed_name(run.name) or names.UNNAMED
    renamed = name != run.name
    own = run.steps
    ranks = None
    if run.steps:
        own, ranks = apart(run.steps)
    run = dataclasses.replace(run, name=name, steps=own)
    if not judged:
        return RunInFile(run, renamed, [])
    verdict = None
    steps, telemetry = _series(run)
    facts = run.environment | run.facts
    try:
        gaps = RunGaps.of(steps, run.phases)
        # Made here, so that a sender cannot invent them.
        if run.verdict is not None:
            verdict = judge(
                run.config, steps, run.phases, telemetry, facts, possible=can_run, gaps=gaps
            )
        idle = spark(steps, run.phases, gaps.every)
        summary = _with_training_time(run, gaps)
    except (errors.VitprofError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"run {run.run_id}: its steps do not make sense ({errors.one_line(error)})"
        ) from error
    judged_run = dataclasses.replace(run, verdict=verdict, summary=summary)
    return RunInFile(judged_run, renamed, idle, ranks)


def _with_training_time(run: Recording, gaps: RunGaps) -> RunSummary | None:
    """Returns the figures of a run with its training time, which earlier versions did not note."""
    summary = run.summary
    if summary is None or run.config.loader_only or math.isfinite(summary.training_s):
        return summary
    if not gaps.training.span_ns:
        return summary
    return dataclasses.replace(summary, training_s=gaps.training.span_s)


def _insert(into: RunImport, runs: Sequence[RunInFile]) -> Imported:
    """Stores the runs that are not in the store yet.

    In a file a run comes before those that were made for it, as its id is lower. Where it is
    missing, they are stored as runs of their own.
    """
    moments = {run.recording.created_utc for run in runs}
    stored_ids = {identity(run, run.owner_host): run.run_id for run in into.recorded_in(moments)}
    new_ids: dict[int, int] = {}
    as_it_was = set[int]()
    results = list[ImportedRun]()
    skipped = renamed = 0
    for run in runs:
        about = run.recording
        known = stored_ids.get(identity(run.recording))
        parent = new_ids.get(run.parent)
        # Nothing in a file changes a run that is here.
        if known is None and run.parent in as_it_was:
            as_it_was.add(about.run_id)
            skipped += 1
            continue
        if known is not None:
            as_it_was.add(about.run_id)
        if known is None:
            registry.remember(about.config.dataset)
        run_id = known or _insert_run(into, run, parent)
        if run.renamed and known is None:
            renamed += 1
        new_ids[about.run_id] = run_id
        results.append(
            ImportedRun(
                run_id, about.name, already_here=known is not None, helper=parent is not None
            )
        )
    return Imported(tuple(results), skipped, renamed)


def _insert_run(into: RunImport, run_in_file: RunInFile, parent: int | None) -> int:
    run = run_in_file.recording
    group = RunGroup.parse(run.group_key)
    steps, telemetry = _series(run)
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
    values |= {"notices": list(run.notices), "spark": run_in_file.spark, "error": run.error or ""}
    values["verdict"] = run.verdict.to_dict() if run.verdict else None
    # Without the run that it was made for, it is a run of its own.
    if group and parent:
        values |= {"group_key": RunGroup(group.kind, parent).key, "role": run.role}
    return into.insert(
        values, steps=steps, telemetry=telemetry, ranks=run_in_file.ranks, tags=run.tags
    )
