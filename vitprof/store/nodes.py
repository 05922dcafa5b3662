"""The nodes of a distributed job: each one's program records its ranks as a run of its own. Once the runs have ended,
they become one, that of rank 0 (launchers that start a command for each rank make as many runs).

Every machine's monotonic clock has a beginning of its own. In data-parallel training all ranks begin a step together,
as they end the one before in a collective: the median difference of the beginnings is the difference of the clocks, and
half of their middle 90% its error. Of too few steps it is taken by the machines' UTC clocks, whose error is not known.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.errors import StoreError
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store.chunks import chunks_of, insert_chunks
from vitprof.store.database import in_parts, runs
from vitprof.store.run_store import RunStore, erase_rows
from vitprof.store.stored_run import StoredRun

BEGAN_WITHIN_S = 120.0
"""Runs whose training began further apart (s, UTC) are no parts of one job: addresses and ports are used again."""
MOMENTS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s")
"""Columns of moments on the machine's monotonic clock."""


@dataclass(frozen=True)
class Joined:
    """A job whose nodes' runs became one."""

    run_id: int
    """That of rank 0."""
    parts: tuple[int, ...]
    """The runs that are in it now."""


def is_part(run: StoredRun) -> bool:
    """Returns whether a run is of a node that has not rank 0."""
    return bool(run.environment.get("job") and run.environment.get("rank"))


def join_nodes(store: RunStore, run_id: int) -> Joined | None:
    """Joins the runs of the job that a run is of, as far as they have ended and are in this store; several programs may
    do so at once. Returns None where there is nothing to join.
    """
    run = store.run(run_id)
    key = run.environment.get("job")
    if not key or run.environment.get("world_size", 1) < 2:
        return None
    same = runs.c.environment["job"].as_string() == key
    with store.transaction() as db:
        ids = db.execute(
            sa.select(runs.c.id).where(runs.c.id > 0, same, runs.c.status.not_in(LIVE_STATUSES))
        ).scalars()
    size = run.environment["world_size"]
    found = [
        each for each in _readable(store, list(ids)) if each.environment.get("world_size") == size
    ]
    found = [each for each in found if abs(_began_s(each) - _began_s(run)) <= BEGAN_WITHIN_S]
    parts = [each for each in found if is_part(each)]
    wholes = [each for each in found if not is_part(each)]
    whole = min(wholes, key=lambda each: abs(_began_s(each) - _began_s(run)), default=None)
    if whole is None or not parts:
        return None
    with store.writing() as db:
        facts = db.execute(
            sa.select(runs.c.facts).where(runs.c.id == whole.id).with_for_update()
        ).scalar_one()
        there = {
            run_id
            for ids in in_parts(part.id for part in parts)
            for run_id in db.execute(sa.select(runs.c.id).where(runs.c.id.in_(ids))).scalars()
        }
        nodes = list(facts.get("nodes") or [_node(whole, [0, *_others(store, whole)])])
        mine = store.steps(whole.id)
        moved = list[StoredRun]()
        for part in (each for each in parts if each.id in there):
            series = store.steps_of_ranks(part.id)
            series[int(part.environment["rank"])] = series.pop(0)
            same_clock = _host(part) == _host(whole)
            if there_already := {rank for node in nodes for rank in node["ranks"]} & set(series):
                known = store.steps_of_ranks(whole.id, names=("step_s",))
                if all(
                    np.array_equal(known[rank]["step_s"], series[rank]["step_s"])
                    for rank in there_already
                ):
                    erase_rows(db, [part.id])  # imported a second time
                    moved.append(part)
                continue
            moved.append(part)
            shift, error = (0.0, 0.0) if same_clock else _shift(whole, mine, part, series)
            for rank, steps in series.items():
                insert_chunks(
                    db, whole.id, chunks_of("ranks", _moved(steps, rank, shift), merge=True)
                )
            nodes.append(_node(part, sorted(series)) | {"clock_error_s": error})
            erase_rows(db, [part.id])
        # they ran at the same time, as they had to
        of_parts = tuple(f"run {part.id} on " for part in moved)
        notices = [line for line in whole.notices if not line.startswith(of_parts)]
        values = {"facts": {**facts, "nodes": nodes}, "notices": notices}
        db.execute(sa.update(runs).where(runs.c.id == whole.id).values(values))
    return Joined(whole.id, tuple(part.id for part in moved)) if moved else None


def of_other_ranks(store: RunStore, run: StoredRun, names: Sequence[str]) -> Iterator[Series]:
    """Yields these columns of each rank of a run but that whose figures are the run's."""
    if run.environment.get("world_size", 1) > 1:
        yield from (
            steps
            for rank, steps in sorted(store.steps_of_ranks(run.id, names=names).items())
            if rank
        )


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
    about = {"host": _host(run), "ranks": ranks, "clock_error_s": 0.0}
    facts = run.facts
    about |= {name: facts.get(name) for name in ("others_cores", "disk_mb_per_s")}
    return about | {"clocks": facts.get("clocks") or {}}


def _shift(
    whole: StoredRun, mine: Series, part: StoredRun, series: dict[int, Series]
) -> tuple[float, float | None]:
    """Returns what to add to moments of the part's clock, and its error; None where that is not known."""
    first = series[int(part.environment["rank"])]
    _, here, there = np.intersect1d(mine["step"], first["step"], return_indices=True)
    apart = mine["t_start_s"][here] - first["t_start_s"][there]
    if len(apart) >= MIN_STEPS:
        low, middle, high = np.percentile(apart, (5, 50, 95))
        return float(middle), float(high - low) / 2
    began = (run.training_since_s or 0.0 for run in (whole, part))
    return float(next(began) - _began_s(whole) - next(began) + _began_s(part)), None


def _moved(steps: Series, rank: int, shift: float) -> Series:
    moved = {name: values + shift if name in MOMENTS else values for name, values in steps.items()}
    return moved | {"rank": np.full(len(steps["step"]), float(rank))}
