"""What one write to the run store takes, and how it is read from a file of what had to wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.jobs.spool import HEADER, STEPS, TELEMETRY, values_of
from vitprof.records import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore

ROWS_AT_ONCE = 10_000
"""Steps and samples in one transaction, where many wait."""
SAMPLE_COLUMNS = ("seq", *TELEMETRY_COLUMNS)
Matrix = NDArray[np.float64]


@dataclass
class Batch:
    """What one write takes."""

    steps: list[Matrix] = field(default_factory=list)
    """(n, len(STEP_COLUMNS)) each."""
    samples: list[Matrix] = field(default_factory=list)
    """(n, len(SAMPLE_COLUMNS)) each: the number of the sample, then its columns."""
    values: dict[str, Any] = field(default_factory=dict)
    """Columns of the run."""

    @property
    def n_bytes(self) -> int:
        return sum(rows.nbytes for rows in (*self.steps, *self.samples))

    @property
    def n_steps(self) -> int:
        return sum(map(len, self.steps))

    @property
    def n_samples(self) -> int:
        return sum(map(len, self.samples))

    def __bool__(self) -> bool:
        return bool(self.steps or self.samples or self.values)

    def merge(self, more: Batch) -> None:
        """Takes what comes after it; of columns of the run the newest counts."""
        self.steps += more.steps
        self.samples += more.samples
        self.values |= more.values

    def write_rows(self, store: RunStore, run_id: int, *, again: bool = False) -> None:
        """Writes steps and telemetry. `again`: those that are there already are left out. Raises `StoreError`."""
        if self.steps:
            store.append_steps(run_id, np.concatenate(self.steps).tolist(), again=again)
        if self.samples:
            samples = np.concatenate(self.samples)
            for part in np.split(samples, np.flatnonzero(np.diff(samples[:, 0]) != 1) + 1):
                store.append_telemetry(run_id, int(part[0, 0]), part[:, 1:].tolist(), again=again)


def read_batch(
    frames: Iterator[tuple[bytes, bytes]],
    *,
    steps: Sequence[str] = STEP_COLUMNS,
    samples: Sequence[str] = SAMPLE_COLUMNS,
) -> Batch:
    """Returns what the next frames of a file hold, some 10,000 rows of it; an empty one at its end.

    `steps` and `samples` are the columns of whoever wrote it. Raises `ValueError` and what reading raises, where
    nothing comes before what is damaged.
    """
    batch = Batch()
    while batch.n_steps + batch.n_samples < ROWS_AT_ONCE:
        try:
            frame = next(frames, None)
        except (ValueError, OSError):
            if batch:
                break
            raise
        if frame is None:
            break
        kind, payload = frame
        if kind == STEPS:
            batch.steps.append(_matrix(payload, steps, STEP_COLUMNS))
        elif kind == TELEMETRY:
            batch.samples.append(_matrix(payload, samples, SAMPLE_COLUMNS))
        elif kind != HEADER:
            batch.values |= values_of(payload)
    return batch


def _matrix(payload: bytes, names: Sequence[str], wanted: Sequence[str]) -> Matrix:
    """Returns rows with the columns of this version: what another one did not measure is not available."""
    found = np.frombuffer(payload).reshape(-1, len(names))
    if tuple(names) == tuple(wanted):
        return found
    nothing = np.full(len(found), np.nan)
    return np.column_stack([found[:, names.index(name)] if name in names else nothing for name in wanted])
