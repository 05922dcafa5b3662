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
    """Stores a prediction and returns its id; that of the existing one, if there is one of the same loader-only run."""
    values = {
        "profile_run_id": profile_run_id,
        "micro_run_id": micro_run_id,
        "config": config.to_dict(),
    }
    values |= {
        "samples_per_s": found.samples_per_s,
        "low": found.low,
        "high": found.high,
        "created_utc": now_utc(),
    }
    with store.transaction() as db:
        known = db.execute(
            sa.select(predictions.c.id).where(predictions.c.micro_run_id == micro_run_id)
        ).scalar()
        return (
            inserted_id(db.execute(sa.insert(predictions).values(values)))
            if known is None
            else int(known)
        )


def prediction(store: RunStore, prediction_id: int) -> StoredPrediction:
    """Returns one prediction. Raises `StoreError` if there is none with this id."""
    missing = f"there is no prediction {prediction_id}; make some with {program()} predict RUN"
    return _stored(store.row(sa.select(predictions), predictions.c.id, prediction_id, missing))


def list_predictions(store: RunStore, profile_run_id: int | None = None) -> list[StoredPrediction]:
    """Returns the predictions made from one run (default: from any) that this version can read, oldest first."""
    query = (
        sa.select(predictions).where(predictions.c.profile_run_id > 0).order_by(predictions.c.id)
    )
    if profile_run_id is not None:
        query = query.where(predictions.c.profile_run_id == profile_run_id)
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    return list(readable(rows, _stored))


def latest_of_each(found: Sequence[StoredPrediction]) -> list[StoredPrediction]:
    """Returns one prediction for each strategy in `found` (oldest first): the newest checked one, else the newest."""
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
    wanted = (
        r for r in rows if host in (None, r.owner_host) and device in (None, r.config.get("device"))
    )
    return calibration(
        [(row.samples_per_s, row.low, row.high, row.measured_per_s) for row in wanted]
    )


def _stored(row: sa.Row[Any]) -> StoredPrediction:
    with reading(f"prediction {row.id}"):
        return StoredPrediction(**{**row._mapping, "config": RunConfig.from_dict(row.config)})
