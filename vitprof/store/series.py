"""Steps and telemetry in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.store.database import Database
from vitprof.store.schema import STEP_FIELDS, TELEMETRY_FIELDS, steps, telemetry


class SeriesStore(Database):
    """What is measured for each step and several times a second. Raises `StoreError`."""

    def append_steps(self, run_id: int, rows: Iterable[Sequence[float]]) -> None:
        """Adds steps; each row in the order of `STEP_COLUMNS`."""
        self._append(steps, [dict(zip(STEP_FIELDS, row, strict=True), run_id=run_id) for row in rows])

    def append_telemetry(self, run_id: int, first_seq: int, rows: Iterable[Sequence[float]]) -> None:
        """Adds telemetry samples, numbered from `first_seq`; each row in the order of `TELEMETRY_COLUMNS`."""
        self._append(
            telemetry,
            [
                dict(zip(TELEMETRY_FIELDS, row, strict=True), run_id=run_id, seq=seq)
                for seq, row in enumerate(rows, first_seq)
            ],
        )

    def _append(self, table: sa.Table, rows: list[dict[str, float | int]]) -> None:
        if rows:
            with self.transaction() as db:
                db.execute(sa.insert(table), rows)

    def n_steps(self, run_id: int) -> int:
        """Returns how many steps the run has, without reading them."""
        with self.transaction() as db:
            return int(db.execute(sa.select(sa.func.count()).where(steps.c.run_id == run_id)).scalar_one())

    def steps(self, run_id: int, *, after: int = -1, names: Sequence[str] = STEP_FIELDS) -> Series:
        """Returns the run's steps with a number above `after`, in order."""
        return self._series(steps, run_id, steps.c.step, after, names)

    def telemetry(self, run_id: int, *, after: int = -1, names: Sequence[str] = TELEMETRY_FIELDS) -> Series:
        """Returns the run's telemetry samples with a number above `after`, in order, with that number as "seq"."""
        return self._series(telemetry, run_id, telemetry.c.seq, after, ("seq", *names))

    def _series(self, table: sa.Table, run_id: int, order: sa.Column[Any], after: int, names: Sequence[str]) -> Series:
        query = sa.select(*(table.c[n] for n in names)).where(table.c.run_id == run_id, order > after).order_by(order)
        with self.transaction() as db:
            rows = db.execute(query).fetchall()
        matrix = np.array([tuple(r) for r in rows], dtype=np.float64).reshape(len(rows), len(names))
        return {name: matrix[:, i] for i, name in enumerate(names)}
