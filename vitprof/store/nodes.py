"""The nodes of a distributed job: each one's program records its ranks as a run of its own.

Once the runs have ended, they become one, that of rank 0. (Launchers that start a command for each rank
make as many runs.) They are known as those of one job by a random id that their processes share, else by
less, which is said.

Every machine's monotonic clock has a beginning of its own. In data-parallel training all ranks begin a
step together, as they end the one before in a collective. So the median difference of the beginnings
is the difference of the clocks, and half of their middle 90% is its error. With too few steps the
difference is that of the machines' UTC clocks, whose error is not known; or that of the steps, where the
UTC clocks are known to be wrong.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.analysis.timing.steady import STOPS, plain_stops, stops_of
from vitprof.errors import StoreError
from vitprof.recording.columns import LIVE_STATUSES, Stop
from vitprof.store.chunks import chunks_of, insert_chunks
from vitprof.store.database import in_parts, runs
from vitprof.store.run_store import RunStore, erase_rows
from vitprof.store.stored_run import StoredRun

BEGAN_WITHIN_S = 120.0
"""Runs without an id in common whose training began further apart (s, UTC) are no parts of one job: an address
and a port are used again."""
MOMENTS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s")
"""Columns of moments on the machine's monotonic clock."""
MEETING = re.compile("[0-9a-f]{32}")
"""The id of a store by which processes met, as `watch.rank_identity.job_key` makes it."""
OF_ONE_HOST = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
"""Addresses that mean another machine on each."""
NO_LAUNCH = ("", "none")
"""Ids of a launcher that many jobs have; `none` is torchrun's own."""

Sureness = Literal["id", "launcher", "address"]
"""By what two runs are known as parts of one job. id: by that of the store by which their processes met, which
no other job has. launcher: by address, port, the id of a launcher or batch system, and by when they began.
address: without such an id."""


@dataclass(frozen=True)
class Match:
    """Why two runs are taken for parts of one job."""

    by: Sureness
    apart_s: float
    """How far apart they began, by the clocks of their machines (UTC)."""

    @property
    def is_sure(self) -> bool:
        return self.by == "id"

    @property
    def reasons(self) -> str:
        """Returns what a match rests on that no id says so of."""
        names = "address and port"
        if self.by == "launcher":
            names = "address, port and the launcher's id"
        return f"their {names} are the same, and they began {formats.seconds(self.apart_s)} apart"


@dataclass(frozen=True)
class Joined:
    """A job whose nodes' runs became one."""

    run_id: int
    """That of rank 0."""
    parts: tuple[int, ...]
    """The runs that are in it now."""
    stops: tuple[Stop, ...] = ()
    """Times in which their nodes' ranks could not run, on the clock of rank 0's."""
    unsure: tuple[Match, ...] = ()
    """Why those of them are in it that no id says so of."""


def meeting_of(job: str) -> str:
    """Returns the id of the store by which the processes of a job met, from `Environment.job`; "" where
    it has none."""
    *_, last = job.split("/")
    return last if MEETING.fullmatch(last) else ""


def match_of(run: StoredRun, other: StoredRun) -> Match | None:
    """Returns why two runs are parts of one job; None where nothing says so."""
    job = str(run.environment.get("job") or "")
    other_job = str(other.environment.get("job") or "")
    sizes = {each.environment.get("world_size") for each in (run, other)}
    if not job or not other_job or len(sizes) > 1:
        return None
    apart_s = abs(_began_s(run) - _began_s(other))
    if meeting_of(job):
        # Nodes may have names of their own for the address, and clocks that are hours apart.
        return Match("id", apart_s) if meeting_of(job) == meeting_of(other_job) else None
    if job != other_job or apart_s > BEGAN_WITHIN_S:
        return None
    address, *ids = job.split("/")
    if address in OF_ONE_HOST and _host(run) != _host(other):
        return None
    # a port, and then the ids of torchrun and Slurm
    has_id = any(each not in NO_LAUNCH for each in ids[1:])
    return Match("launcher" if has_id else "address", apart_s)


def is_part(run: StoredRun) -> bool:
    """Returns whether a run is of a node that has not rank 0."""
    return bool(run.environment.get("job") and run.environment.get("rank"))


@dataclass(frozen=True)
class _Job:
    """The runs of a job's nodes that have ended and are in the store."""

    whole: StoredRun
    """That of rank 0."""
    parts: tuple[StoredRun, ...]


def _job_of(store: RunStore, run: StoredRun, *, unsure: bool) -> _Job | None:
    """Returns the job of a run; None where there is nothing to join. `unsure`: whether runs are taken for
    its parts that no id says so of."""
    if not run.environment.get("job") or run.environment.get("world_size", 1) < 2:
        return None
    matches = {run.id: Match("id", 0.0)}
    same_job = [run]
    for each in _alike(store, run):
        match = match_of(run, each)
        if match is not None and each.id != run.id and (unsure or match.is_sure):
            matches[each.id] = match
            same_job.append(each)
    wholes = [each for each in same_job if not is_part(each)]
    parts = tuple(each for each in same_job if is_part(each))
    if not wholes or not parts:
        return None
    return _Job(min(wholes, key=lambda each: matches[each.id].apart_s), parts)


@dataclass(frozen=True)
class PossiblePart:
    """A run that may be a part of another one's job: nobody can be sure."""

    run_id: int
    whole_id: int
    """The run of rank 0."""
    match: Match

    @property
    def sentence(self) -> str:
        """Returns what is known of it."""
        of_one_job = f"run {self.run_id} may be of the job of run {self.whole_id}"
        return f"{of_one_job}: {self.match.reasons}, but no id says so"


def possible_part(store: RunStore, run_id: int) -> PossiblePart | None:
    """Returns of which job a run may be a part, or has a part, where no id says so; None where nothing
    does. Raises `StoreError`."""
    run = store.run(run_id)
    job = _job_of(store, run, unsure=True)
    if job is None:
        return None
    part = run if is_part(run) else job.parts[0]
    match = match_of(part, job.whole)
    ranks = {int(part.environment["rank"]), *_others(store, part)}
    known = {0, *_others(store, job.whole)}
    if match is None or match.is_sure or ranks & known:
        return None
    return PossiblePart(part.id, job.whole.id, match)


def join_nodes(store: RunStore, run_id: int, *, unsure: bool = True) -> Joined | None:
    """Joins the runs of the job that a run is of, as far as they have ended and are in this store.

    `unsure`: whether runs are joined that no id says so of. Several programs may do so at once.
    Returns None where there is nothing to join. Raises `StoreError`.
    """
    run = store.run(run_id)
    if run.live:
        return None
    job = _job_of(store, run, unsure=unsure)
    if job is None:
        return None
    with store.writing() as db:
        joining = _Joining(store, db, job.whole)
        for part in joining.still_runs(job.parts):
            joining.add(part)
        joining.write()
    return joining.result


class _Joining:
    """Takes the ranks of a job's other nodes into the run of rank 0, in one transaction."""

    def __init__(self, store: RunStore, db: sa.Connection, whole: StoredRun) -> None:
        self._store = store
        self._db = db
        self._whole = whole
        own_facts = sa.select(runs.c.facts).where(runs.c.id == whole.id).with_for_update()
        self._facts: dict[str, Any] = db.execute(own_facts).scalar_one()
        own_ranks = [0, *_others(store, whole)]
        self._nodes = list(self._facts.get("nodes") or [_node(whole, own_ranks)])
        self._steps = store.steps(whole.id)
        self._moved: list[StoredRun] = []
        """The runs that are in it now."""
        self._stops: list[Stop] = []
        self._unsure: list[Match] = []

    def still_runs(self, parts: Sequence[StoredRun]) -> list[StoredRun]:
        """Returns the runs that no other program has joined just now."""
        stored: set[int] = set()
        for ids in in_parts(part.id for part in parts):
            query = sa.select(runs.c.id).where(runs.c.id.in_(ids))
            stored.update(self._db.execute(query).scalars())
        return [part for part in parts if part.id in stored]

    def add(self, part: StoredRun) -> None:
        """Takes the ranks of a node's run, and erases it; not those of another job at the same address."""
        match = match_of(part, self._whole)
        if match is None:
            return
        series = self._store.steps_of_ranks(part.id)
        series[int(part.environment["rank"])] = series.pop(0)
        of_starts = _starts_of(part), _starts_of(self._whole)
        series = {rank: _aligned(steps, *of_starts) for rank, steps in series.items()}
        known_ranks = {rank for node in self._nodes for rank in node["ranks"]} & set(series)
        if known_ranks:
            # imported a second time
            if _are_stored(self._store, self._whole, series, known_ranks):
                self._erase(part)
            return
        shift: float = 0.0
        error: float | None = 0.0
        if _host(part) != _host(self._whole):
            shift, error = _shift(self._whole, self._steps, part, series)
        for rank, steps in series.items():
            chunks = chunks_of("ranks", _moved(steps, rank, shift), merge=True)
            insert_chunks(self._db, self._whole.id, chunks)
        node = _node(part, sorted(series))
        self._nodes.append({**node, "clock_error_s": error, "matched_by": match.by})
        self._stops += _moved_stops(part, shift)
        if not match.is_sure:
            self._unsure.append(match)
        self._erase(part)

    def _erase(self, part: StoredRun) -> None:
        erase_rows(self._db, [part.id])
        self._moved.append(part)

    def write(self) -> None:
        """Writes what the run of rank 0 says of its nodes."""
        # no disturbance: they ran at the same time, as they had to
        of_parts = tuple(f"run {part.id} on " for part in self._moved)
        notices = [line for line in self._whole.notices if not line.startswith(of_parts)]
        facts = {**self._facts, "nodes": self._nodes}
        if self._stops:
            facts[STOPS] = [*(facts.get(STOPS) or ()), *plain_stops(self._stops)]
        values = {"facts": facts, "notices": notices}
        self._db.execute(sa.update(runs).where(runs.c.id == self._whole.id).values(values))

    @property
    def result(self) -> Joined | None:
        if not self._moved:
            return None
        ids = tuple(part.id for part in self._moved)
        return Joined(self._whole.id, ids, tuple(self._stops), tuple(self._unsure))


def _alike(store: RunStore, run: StoredRun) -> list[StoredRun]:
    """Returns the ended runs whose job may be that of `run`."""
    job = runs.c.environment["job"].as_string()
    own_job = str(run.environment["job"])
    meeting = meeting_of(own_job)
    same = job.endswith(meeting) if meeting else job == own_job
    ended = runs.c.status.not_in(LIVE_STATUSES)
    with store.transaction() as db:
        query = sa.select(runs.c.id).where(runs.c.id > 0, same, ended)
        ids = list(db.execute(query).scalars())
    return list(_readable(store, ids))


@dataclass(frozen=True)
class _Start:
    """A start of a training: the first one, or one of its launcher's."""

    first_step: int
    meeting: str
    """See `meeting_of`; "" for the first one, by which the runs are known as those of one job."""
    nth: int
    """Which of those with this id: a launcher may keep its store."""


def _starts_of(run: StoredRun) -> list[_Start]:
    starts = [_Start(0, "", 0)]
    for again in run.facts.get("restarted_at") or ():
        meeting = str(again["meeting"])
        nth = sum(start.meeting == meeting for start in starts)
        starts.append(_Start(int(again["step"]), meeting, nth))
    return starts


def _spans(starts: Sequence[_Start]) -> Iterator[tuple[_Start, float]]:
    """Yields each start with the first step of the next one."""
    ends = [float(start.first_step) for start in starts[1:]]
    yield from zip(starts, [*ends, math.inf], strict=True)


def _aligned(steps: Series, own: Sequence[_Start], of_whole: Sequence[_Start]) -> Series:
    """Returns a rank's steps with the numbers that rank 0's node gave them.

    Where a training is started again, what the nodes had made until then may differ by a step, and a
    start may have trained on some of them only.
    """
    if own == of_whole:
        return steps
    number = steps["step"]
    moved = np.full(len(number), np.nan)
    spans_of_whole = {
        (start.meeting, start.nth): (start.first_step, end) for start, end in _spans(of_whole)
    }
    for start, end in _spans(own):
        span = spans_of_whole.get((start.meeting, start.nth))
        if span is None:
            continue
        first_there, end_there = span
        there = number - start.first_step + first_there
        is_of_start = (number >= start.first_step) & (number < end)
        moved = np.where(is_of_start & (there < end_there), there, moved)
    kept = np.isfinite(moved)
    return {**{name: values[kept] for name, values in steps.items()}, "step": moved[kept]}


def _are_stored(
    store: RunStore, whole: StoredRun, series: dict[int, Series], ranks: set[int]
) -> bool:
    """Returns whether the steps of all `ranks` in `series` are those that the run `whole` has."""
    known = store.steps_of_ranks(whole.id, names=("step_s",))
    return all(np.array_equal(known[rank]["step_s"], series[rank]["step_s"]) for rank in ranks)


def of_other_ranks(store: RunStore, run: StoredRun, names: Sequence[str]) -> Iterator[Series]:
    """Yields these columns of each rank of a run but that whose figures are the run's."""
    if run.environment.get("world_size", 1) < 2:
        return
    for rank, steps in sorted(store.steps_of_ranks(run.id, names=names).items()):
        if rank:
            yield steps


def _readable(store: RunStore, ids: Sequence[int]) -> Iterator[StoredRun]:
    for run_id in ids:
        # joined just now, or another version's
        with contextlib.suppress(StoreError):
            yield store.run(run_id)


def _began_s(run: StoredRun) -> float:
    return float(run.environment.get("began_unix_s") or 0.0)


def _host(run: StoredRun) -> str:
    # an imported run's owner is who imported it
    return str(run.environment.get("hostname") or run.owner_host)


def _others(store: RunStore, run: StoredRun) -> list[int]:
    return sorted(rank for rank in store.steps_of_ranks(run.id, names=("step",)) if rank)


def _node(run: StoredRun, ranks: list[int]) -> dict[str, Any]:
    facts = run.facts
    return {
        "host": _host(run),
        "ranks": ranks,
        "clock_error_s": 0.0,
        "others_cores": facts.get("others_cores"),
        "disk_mb_per_s": facts.get("disk_mb_per_s"),
        "clocks": facts.get("clocks") or {},
    }


def _shift(
    whole: StoredRun, whole_steps: Series, part: StoredRun, series: dict[int, Series]
) -> tuple[float, float | None]:
    """Returns the seconds to add to moments of the part's clock, and their error (s); None where that
    is not known. See the module's docstring.
    """
    part_steps = series[int(part.environment["rank"])]
    _, in_whole, in_part = np.intersect1d(
        whole_steps["step"], part_steps["step"], return_indices=True
    )
    differences_s = whole_steps["t_start_s"][in_whole] - part_steps["t_start_s"][in_part]
    if len(differences_s) >= MIN_STEPS:
        low, middle, high = np.percentile(differences_s, (5, 50, 95))
        return float(middle), float(high - low) / 2
    if len(differences_s) and abs(_began_s(part) - _began_s(whole)) > BEGAN_WITHIN_S:
        return float(np.median(differences_s)), None
    return float(_clock_start_s(part) - _clock_start_s(whole)), None


def _clock_start_s(run: StoredRun) -> float:
    """Returns when the run's monotonic clock was 0, by its machine's UTC clock (s since the epoch)."""
    return _began_s(run) - (run.training_since_s or 0.0)


def _moved(steps: Series, rank: int, shift: float) -> Series:
    moved = {name: values + shift if name in MOMENTS else values for name, values in steps.items()}
    return moved | {"rank": np.full(len(steps["step"]), float(rank))}


def _moved_stops(part: StoredRun, shift: float) -> Iterator[Stop]:
    """Yields the times in which ranks of a node could not run, on the clock of rank 0's node.

    Not those in which its machine slept: its clock did not run meanwhile, so it is not known when
    that was.
    """
    for stop in stops_of(part.facts):
        if stop.kind == "asleep":
            continue
        rank = int(part.environment["rank"]) if stop.rank is None else stop.rank
        begin_s = stop.t_start_s + shift
        end_s = stop.t_end_s + shift
        yield replace(stop, rank=rank, t_start_s=begin_s, t_end_s=end_s)
