"""The nodes of a distributed job: each one's program records its ranks as a run of its own.

Once the runs have ended, they become one, that of rank 0. (Launchers that start a command for each rank
make as many runs.)

Every machine's monotonic clock has a beginning of its own. In data-parallel training all ranks begin a
step together, as they end the one before in a collective. So the median difference of the beginnings
is the difference of the clocks, and half of their middle 90% is its error. With too few steps the
difference is that of the machines' UTC clocks, whose error is not known.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

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
"""Runs whose training began further apart (s, UTC) are no parts of one job: jobs are told by address and
port, which are used again."""
MOMENTS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s")
"""Columns of moments on the machine's monotonic clock."""


@dataclass(frozen=True)
class Joined:
    """A job whose nodes' runs became one."""

    run_id: int
    """That of rank 0."""
    parts: tuple[int, ...]
    """The runs that are in it now."""
    stops: tuple[Stop, ...] = ()
    """Times in which their nodes' ranks could not run, on the clock of rank 0's."""


def is_part(run: StoredRun) -> bool:
    """Returns whether a run is of a node that has not rank 0."""
    return bool(run.environment.get("job") and run.environment.get("rank"))


def join_nodes(store: RunStore, run_id: int) -> Joined | None:
    """Joins the runs of the job that a run is of, as far as they have ended and are in this store.

    Several programs may do so at once. Returns None where there is nothing to join. Raises
    `StoreError`.
    """
    run = store.run(run_id)
    if not run.environment.get("job") or run.environment.get("world_size", 1) < 2:
        return None
    same_job = _runs_of_job(store, run)
    parts = [each for each in same_job if is_part(each)]
    wholes = [each for each in same_job if not is_part(each)]
    whole = min(wholes, key=lambda each: abs(_began_s(each) - _began_s(run)), default=None)
    if whole is None or not parts:
        return None
    with store.writing() as db:
        own_facts = sa.select(runs.c.facts).where(runs.c.id == whole.id).with_for_update()
        facts = db.execute(own_facts).scalar_one()
        # another program may have joined some of them just now
        stored: set[int] = set()
        for ids in in_parts(part.id for part in parts):
            still_runs = sa.select(runs.c.id).where(runs.c.id.in_(ids))
            stored.update(db.execute(still_runs).scalars())
        nodes = list(facts.get("nodes") or [_node(whole, [0, *_others(store, whole)])])
        own_steps = store.steps(whole.id)
        moved = list[StoredRun]()
        stops = list[Stop]()
        for part in parts:
            if part.id not in stored:
                continue
            series = store.steps_of_ranks(part.id)
            series[int(part.environment["rank"])] = series.pop(0)
            known_ranks = {rank for node in nodes for rank in node["ranks"]} & set(series)
            if known_ranks:
                if _are_stored(store, whole, series, known_ranks):  # imported a second time
                    erase_rows(db, [part.id])
                    moved.append(part)
                continue
            moved.append(part)
            shift: float = 0.0
            error: float | None = 0.0
            if _host(part) != _host(whole):
                shift, error = _shift(whole, own_steps, part, series)
            for rank, steps in series.items():
                chunks = chunks_of("ranks", _moved(steps, rank, shift), merge=True)
                insert_chunks(db, whole.id, chunks)
            nodes.append(_node(part, sorted(series)) | {"clock_error_s": error})
            stops += _moved_stops(part, shift)
            erase_rows(db, [part.id])
        # no disturbance: they ran at the same time, as they had to
        of_parts = tuple(f"run {part.id} on " for part in moved)
        notices = [line for line in whole.notices if not line.startswith(of_parts)]
        facts = {**facts, "nodes": nodes}
        if stops:
            facts[STOPS] = [*(facts.get(STOPS) or ()), *plain_stops(stops)]
        values = {"facts": facts, "notices": notices}
        db.execute(sa.update(runs).where(runs.c.id == whole.id).values(values))
    if not moved:
        return None
    return Joined(whole.id, tuple(part.id for part in moved), tuple(stops))


def _runs_of_job(store: RunStore, run: StoredRun) -> list[StoredRun]:
    """Returns the ended runs of the same job as `run`."""
    same = runs.c.environment["job"].as_string() == run.environment["job"]
    ended = runs.c.status.not_in(LIVE_STATUSES)
    with store.transaction() as db:
        query = sa.select(runs.c.id).where(runs.c.id > 0, same, ended)
        ids = list(db.execute(query).scalars())
    size = run.environment["world_size"]
    return [
        each
        for each in _readable(store, ids)
        if each.environment.get("world_size") == size
        and abs(_began_s(each) - _began_s(run)) <= BEGAN_WITHIN_S
    ]


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
