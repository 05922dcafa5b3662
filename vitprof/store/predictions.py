"""Predictions in the run store: the predicted throughput, the runs it came from, and the throughput then measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from vitprof.analysis.verdict.prediction import Calibration, Prediction, calibration
from vitprof.config import RunConfig
from vitprof.program import program
from vitprof.store import RunStore
from vitprof.store.database import inserted_id, now_utc, predictions, readable, reading, runs


@dataclass(frozen=True)
class StoredPrediction(Prediction):
    """A prediction as the store holds it."""

    id: int
    profile_run_id: int
    """The run whose job was to be made faster."""
    micro_run_id: int
    """The loader-only run of the strategy."""
    verified_run_id: int | None
    """The run that checks it, which may still be running; None without one."""
    config: RunConfig
    """The config that the prediction is about, ready to be run."""
    created_utc: str
    """ISO 8601 with a Z."""
    measured_per_s: float | None
    """Throughput (samples/s) of the run that checked it; None as long as none has."""

    @property
    def error(self) -> float | None:
        """Returns (predicted - measured) / measured; None if it has not been checked."""
        return None if self.measured_per_s is None else self.samples_per_s / self.measured_per_s - 1


def add_prediction(
    store: RunStore, found: Prediction, config: RunConfig, *, profile_run_id: int, micro_run_id: int
) -> int:
    """Stores a prediction and returns its id.

    Another program may have made one from the same loader-only run meanwhile: then that one's id.
    """
    values = {
        "profile_run_id": profile_run_id,
        "micro_run_id": micro_run_id,
        "config": config.to_dict(),
        "samples_per_s": found.samples_per_s,
        "low": found.low,
        "high": found.high,
        "created_utc": now_utc(),
    }
    of_same_run = sa.select(predictions.c.id).where(predictions.c.micro_run_id == micro_run_id)
    with store.transaction() as db:
        known = db.execute(of_same_run).scalar()
        if known is not None:
            return int(known)
        return inserted_id(db.execute(sa.insert(predictions).values(values)))


def prediction(store: RunStore, prediction_id: int) -> StoredPrediction:
    """Returns one prediction. Raises `StoreError` if there is none with this id."""
    missing = f"there is no prediction {prediction_id}; make some with {program()} predict RUN"
    return _stored(store.row(sa.select(predictions), predictions.c.id, prediction_id, missing))


def list_predictions(store: RunStore, profile_run_id: int | None = None) -> list[StoredPrediction]:
    """Returns the predictions made from one run (default: from any), oldest first.

    Leaves out those that this version cannot read; `prediction` says why.
    """
    # a deleted run's number is negative
    not_deleted = predictions.c.profile_run_id > 0
    query = sa.select(predictions).where(not_deleted).order_by(predictions.c.id)
    if profile_run_id is not None:
        query = query.where(predictions.c.profile_run_id == profile_run_id)
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    return list(readable(rows, _stored))


def latest_of_each(found: Sequence[StoredPrediction]) -> list[StoredPrediction]:
    """Returns one prediction for each strategy in `found` (oldest first), the fastest first.

    It is the newest one that was checked; without any, the newest.
    """
    kept: dict[str, StoredPrediction] = {}
    for p in found:
        before = kept.get(p.config.strategy)
        if before is None or before.measured_per_s is None or p.measured_per_s is not None:
            kept[p.config.strategy] = p
    return sorted(kept.values(), key=lambda p: p.samples_per_s, reverse=True)


def update_prediction(store: RunStore, prediction_id: int, **values: Any) -> None:
    """Sets columns of a prediction; does nothing if it was deleted meanwhile."""
    with store.transaction() as db:
        db.execute(sa.update(predictions).where(predictions.c.id == prediction_id).values(**values))


def calibrate(
    store: RunStore, *, host: str | None = None, device: str | None = None
) -> Calibration:
    """Returns how accurate the checked predictions were: all, or those of one machine and one device."""
    query = sa.select(predictions, runs.c.owner_host).join(
        runs, runs.c.id == predictions.c.profile_run_id
    )
    query = query.where(runs.c.id > 0, predictions.c.measured_per_s.is_not(None))
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    checked = []
    for row in rows:
        if host in (None, row.owner_host) and device in (None, row.config.get("device")):
            checked.append((row.samples_per_s, row.low, row.high, row.measured_per_s))
    return calibration(checked)


def _stored(row: sa.Row[Any]) -> StoredPrediction:
    with reading(f"prediction {row.id}"):
        return StoredPrediction(**{**row._mapping, "config": RunConfig.from_dict(row.config)})
