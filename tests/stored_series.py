"""Steps and telemetry put into a store as rows, and configs as another version may have left them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of, columns_of
from vitprof.store.database import runs

Rows = Iterable[Sequence[float]] | np.ndarray


def append_steps(store: RunStore, run_id: int, rows: Rows, *, again: bool = False) -> None:
    """Adds steps, each row in the order of `STEP_COLUMNS`."""
    store.record(run_id, chunks_of("steps", columns_of(rows, STEP_COLUMNS)), again=again)


def append_telemetry(
    store: RunStore, run_id: int, first_seq: int, rows: Rows, *, again: bool = False
) -> None:
    """Adds telemetry samples, numbered from `first_seq`, each row in the order of `TELEMETRY_COLUMNS`."""
    samples = columns_of(rows, TELEMETRY_COLUMNS)
    numbers = first_seq + np.arange(len(samples["t_s"]), dtype=np.float64)
    store.record(run_id, chunks_of("telemetry", {"seq": numbers, **samples}), again=again)


def rewrite(store: RunStore, run_id: int, config: dict[str, Any]) -> None:
    """Gives a run a config as plain values, readable here or not."""
    with store.transaction() as db:
        db.execute(sa.update(runs).where(runs.c.id == run_id).values(config=config))
