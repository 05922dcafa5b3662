"""Runs of all machines, for a look at what goes on and what it cost."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.analysis.machines import Spent
from vitprof.config.accelerators import is_simulated
from vitprof.names import UNNAMED, tamed_name
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store.database import in_parts, now_utc, runs, series
from vitprof.store.run_store import RunStore

MOST = 5_000
"""The most ended runs that are looked at: 0.3 s."""
COLUMNS = (
    "id",
    "name",
    "status",
    "stage",
    "device",
    "created_utc",
    "owner_user",
    "owner_host",
    "project",
    "summary",
)


@dataclass(frozen=True)
class MachineRun:
    """A run on some machine."""

    id: int
    name: str
    live: bool
    queued: bool
    device: str
    """As it was asked for; of a user's script what it trains on."""
    created_utc: str
    simulated: bool
    """Whether its device is simulated."""
    spent: Spent
    """What it spent, as far as it is summed up: of one that goes on nothing is."""


def work_since(store: RunStore, days: float, *, simulated: bool = False) -> list[MachineRun]:
    """Returns the runs that were made in the last `days`, and all that go on, the newest first.

    Leaves out those on simulated devices unless `simulated`: they cost nobody a device. The run of rank 0
    stands for all nodes of a job. Raises `StoreError`.
    """
    environment = runs.c.environment
    facts = runs.c.facts
    more = {
        "world_size": environment["world_size"].as_integer(),
        "rank": environment["rank"].as_integer(),
        "trained_on": environment["device"].as_string(),
        "host": environment["hostname"].as_string(),
        "lost_frac": facts["ranks"]["lost_frac"].as_float(),
    }
    query = sa.select(
        *(runs.c[name] for name in COLUMNS), *(value.label(name) for name, value in more.items())
    )
    recent = sa.or_(runs.c.created_utc >= now_utc(days), runs.c.status.in_(LIVE_STATUSES))
    query = query.where(runs.c.id > 0, recent).order_by(runs.c.id.desc()).limit(MOST)
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    found = [_work(row._mapping) for row in rows if not row.rank]
    return [work for work in found if simulated or not work.simulated]


def last_steps(store: RunStore, run_ids: Collection[int]) -> dict[int, dict[int, int]]:
    """Returns the number of the last step of each rank, by run and rank, without reading any step.

    Raises `StoreError`.
    """
    key = (series.c.run_id, series.c.rank)
    query = (
        sa.select(*key, sa.func.max(series.c.last))
        .where(series.c.kind != "telemetry")
        .group_by(*key)
    )
    last: dict[int, dict[int, int]] = {}
    with store.transaction() as db:
        for ids in in_parts(run_ids):
            for run_id, rank, step in db.execute(query.where(series.c.run_id.in_(ids))):
                last.setdefault(run_id, {})[rank] = step
    return last


def _work(row: Mapping[Any, Any]) -> MachineRun:
    summary = row["summary"] or {}
    rate = summary.get("samples_per_s")
    samples = summary.get("n_samples")
    # of several ranks, what they lost by waiting for each other and for data
    idle = row["lost_frac"]
    if idle is None:
        idle = summary.get("exposed_wait_frac")
    spent = Spent(
        machine=row["host"] or row["owner_host"],
        user=row["owner_user"],
        project=row["project"],
        devices=max(1, row["world_size"] or 1),
        trained_s=samples / rate if samples and rate else math.nan,
        idle_frac=math.nan if idle is None else float(idle),
    )
    name = tamed_name(row["name"] or "") or UNNAMED
    live = row["status"] in LIVE_STATUSES
    device = row["trained_on"] or row["device"]
    return MachineRun(
        id=row["id"],
        name=name,
        live=live,
        queued=row["status"] == "queued",
        device=device,
        created_utc=row["created_utc"],
        simulated=is_simulated(row["device"]),
        spent=spent,
    )
