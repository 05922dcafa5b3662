"""Imports a bundle into the store: all of it, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.errors import VitprofError, one_line
from vitprof.export.bundle.archive import MAX_UNPACKED_BYTES, member_names, unpack
from vitprof.export.bundle.run_values import IMPORTED, BundledRun, Identity, from_values
from vitprof.export.bundle.series import steps_of, telemetry_of
from vitprof.export.bundle.values import BundleError, from_json, need
from vitprof.formats import size
from vitprof.jobs.finalise import spark
from vitprof.recording.columns import LIVE_STATUSES, STEP_COLUMNS, TELEMETRY_COLUMNS, Phase
from vitprof.store import RunStore
from vitprof.store.groups import RunGroup
from vitprof.store.importing import RunImport, importing

MAX_ROWS_BESIDE_A_JOB = 200_000
"""The most rows of steps and telemetry that are stored while a job runs: they take about a second of CPU."""


@dataclass(frozen=True)
class ImportedRun:
    """A run of the bundle, as it is in the store now."""

    id: int
    name: str
    already: bool
    """Whether it was in the store before, and was left as it is."""
    helper: bool
    """Whether it belongs to another run, such as an anchor of its headroom."""


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    runs: tuple[ImportedRun, ...]
    left_out: int = 0
    """Runs left out because the run that they were made for was in the store already: they would change its results."""
    renamed: int = 0
    """New runs that got another name, because theirs had line ends or characters that cannot be shown."""

    @property
    def new(self) -> tuple[ImportedRun, ...]:
        """Returns the runs that were not in the store before."""
        return tuple(run for run in self.runs if not run.already)

    @property
    def sentence(self) -> str:
        """Returns in words what is new, and what was in the store already."""
        own = [run.id for run in self.new if not run.helper]
        already = [run.id for run in self.runs if run.already and not run.helper]
        n_helpers = len(self.new) - len(own)
        whose = "a run that is" if self.left_out == 1 else "runs that are"
        said = (
            own and f"{_count(own)} imported as {_numbers(own)}",
            n_helpers and f"{n_helpers} measured for headroom came with {'it' if len(own) == 1 else 'them'}",
            already and f"{_count(already)} {_were(len(already))} here already: {_numbers(already)}",
            self.left_out and f"{self.left_out} measured for {whose} here already {_were(self.left_out)} left out",
            self.renamed and f"{self.renamed} got another name: what it had cannot be shown",
        )
        return "; ".join(str(part) for part in said if part) or "everything in the file was here already"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _count(ids: Sequence[int]) -> str:
    return f"{len(ids)} {'run' if len(ids) == 1 else 'runs'}"


def _numbers(ids: Sequence[int]) -> str:
    shown = ids if len(ids) <= 6 else [*ids[:3], "...", ids[-1]]
    return f"{'run' if len(ids) == 1 else 'runs'} {', '.join(map(str, shown))}"


class RunInFile(NamedTuple):
    """A run of a bundle, all of it checked."""

    about: BundledRun
    values: dict[str, Any]
    """Columns of the store's `runs`."""
    renamed: bool
    """Whether it has another name in the file."""
    steps: Series
    telemetry: Series


def import_bundle(store: RunStore, source: Path | BinaryIO) -> Imported:
    """Imports the runs of a bundle into `store`, with new ids. Runs that are there already are left as they are.

    Raises `BundleError` where anything in the file is not as vitprof writes it, `StoreError` where the store fails;
    nothing is stored then.
    """
    found = read_bundle(source, "imported")
    _check_patience(store, found)
    with importing(store) as into:
        return _insert(into, found)


def read_bundle(source: Path | BinaryIO, purpose: str) -> list[RunInFile]:
    """Returns the runs of a bundle, all of it checked, and stores nothing.

    Raises `BundleError`, which says that the file was not `purpose`, such as "imported", and why.
    """
    with _opened(source) as (name, file):
        try:
            found = list(_read(unpack(file)))
            for names in ({run.about.run_id for run in found}, {run.about.identity for run in found}):
                need(len(names) == len(found), "it holds the same run twice")
        except BundleError as error:
            raise BundleError(f"{name} was not {purpose}: {one_line(error)}") from error
        except MemoryError as error:
            raise BundleError(f"{name} was not {purpose}: there is too little memory to open it") from error
    return found


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    if not isinstance(source, Path):
        yield "the file", source
        return
    try:
        if source.exists() and not source.is_file() and not source.is_dir():  # opening a pipe waits for its writer
            raise BundleError(f"{source} is a device or a pipe; give a file")
        file = source.open("rb")
    except OSError as error:
        raise BundleError(f"{source} cannot be read: {error.strerror or error}") from error
    with file:
        yield str(source), file


def _read(members: dict[str, bytes]) -> Iterator[RunInFile]:
    """Yields every run, checked, and frees its bytes. Raises `BundleError`."""
    n_bytes = 0
    for number in range(1, len(members) // len(member_names(0)) + 1):
        names = member_names(number)
        described, step_bytes, telemetry_bytes = map(members.pop, names)
        told = from_json(described, names[0])
        about = from_values(told, names[0])
        # Its size in the store, with the columns that the file does not have: each row is stored in full.
        n_bytes += 8 * (about.n_steps * len(STEP_COLUMNS) + about.n_telemetry * len(TELEMETRY_COLUMNS))
        allowed = size(MAX_UNPACKED_BYTES)
        need(n_bytes <= MAX_UNPACKED_BYTES, f"it has more steps and telemetry than the {allowed} that are allowed")
        steps = steps_of(about, step_bytes, names[1])
        telemetry = telemetry_of(about, telemetry_bytes, names[2])
        values = about.columns | _findings(about, steps, telemetry, names[0])
        yield RunInFile(about, values, about.name != told["name"], steps, telemetry)


def _findings(run: BundledRun, steps: Series, telemetry: Series, what: str) -> dict[str, Any]:
    """Returns verdict and sparkline, made here so that a sender cannot invent them. Raises `BundleError`."""
    phases, facts, verdict = [Phase(*phase) for phase in run.phases], run.environment | run.facts, None
    try:
        if run.verdict is not None:
            verdict = judge(run.config, steps, phases, telemetry, facts, possible=can_run).to_dict()
        return {"verdict": verdict, "spark": spark(steps, phases)}
    except (VitprofError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BundleError(f"{what}: its steps do not make sense ({one_line(error)})") from error


def _check_patience(store: RunStore, found: Sequence[RunInFile]) -> None:
    """Raises `BundleError` for a large import beside a running job, which waits only 10 s for its turn to write."""
    if sum(run.about.n_steps + run.about.n_telemetry for run in found) > MAX_ROWS_BESIDE_A_JOB:
        live = store.runs(LIVE_STATUSES, limit=1)
        if live:
            raise BundleError(
                f"the file is too large to import while run {live[0].id} is being recorded; import it after that run"
            )


def _insert(into: RunImport, found: Sequence[RunInFile]) -> Imported:
    """Stores the runs that are not in the store yet.

    In a file a run comes before those that were made for it, as its id is lower. Where it is missing, they are stored
    as runs of their own.
    """
    here = _here(into, {run.about.created_utc for run in found})
    new_ids: dict[int, int] = {}
    as_it_was = set[int]()
    results = list[ImportedRun]()
    left_out = renamed = 0
    for run in found:
        about, known, parent = run.about, here.get(run.about.identity), new_ids.get(run.about.parent)
        if known is None and about.parent in as_it_was:  # nothing in a file changes a run that is here
            as_it_was.add(about.run_id)
            left_out += 1
            continue
        if known is not None:
            as_it_was.add(about.run_id)
        group, series = RunGroup.parse(about.group_key), {"steps": run.steps, "telemetry": run.telemetry}
        moved = {"group_key": RunGroup(group.kind, parent).key, "role": about.role} if group and parent else {}
        run_id = known or into.insert(run.values | moved, **series, tags=about.tags)
        renamed += run.renamed and known is None
        new_ids[about.run_id] = run_id
        results.append(ImportedRun(run_id, about.name, already=known is not None, helper=parent is not None))
    return Imported(tuple(results), left_out, renamed)


def _here(into: RunImport, moments: Collection[str]) -> dict[Identity, int]:
    """Returns the ids of this store's runs that were made in these seconds, by identity."""
    here: dict[Identity, int] = {}
    for run in into.recorded_in(moments):
        made = run.facts.get(IMPORTED) or {"host": run.owner_host, "run_id": run.id}
        here[made.get("host"), made.get("run_id"), run.created_utc, run.t_origin_s] = run.id
    return here
