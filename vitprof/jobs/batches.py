"""The data of one write to the run store, and how they are read back from a spool file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.jobs.spool import HEADER, STEPS, TELEMETRY, values_of
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore

ROWS_AT_ONCE = 10_000
"""Steps and telemetry samples in one transaction, where many are waiting."""
SAMPLE_COLUMNS = ("seq", *TELEMETRY_COLUMNS)
Matrix = NDArray[np.float64]


@dataclass
class Batch:
    """The steps, telemetry samples and columns of a run that are written together."""

    steps: list[Matrix] = field(default_factory=list)
    """(n, len(STEP_COLUMNS)) float64 each."""
    samples: list[Matrix] = field(default_factory=list)
    """(n, len(SAMPLE_COLUMNS)) float64 each: the sample's number, then its columns."""
    values: dict[str, Any] = field(default_factory=dict)
    """New values of the run's columns, by name."""

    @property
    def n_bytes(self) -> int:
        """Returns the bytes of its rows."""
        return sum(rows.nbytes for rows in (*self.steps, *self.samples))

    @property
    def n_steps(self) -> int:
        """Returns the number of its steps."""
        return sum(map(len, self.steps))

    @property
    def n_samples(self) -> int:
        """Returns the number of its telemetry samples."""
        return sum(map(len, self.samples))

    def __bool__(self) -> bool:
        return bool(self.steps or self.samples or self.values)

    def merge(self, more: Batch) -> None:
        """Appends a later batch; its values replace those of the same columns."""
        self.steps += more.steps
        self.samples += more.samples
        self.values |= more.values

    def write_rows(self, store: RunStore, run_id: int, *, again: bool = False) -> None:
        """Writes steps and telemetry; with `again`, skips those that are stored already. Raises `StoreError`."""
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
    """Returns the next frames of a spool file as a batch of at least `ROWS_AT_ONCE` rows; fewer, or none, at its end.

    `steps` and `samples` are the columns that the file was written with. A batch ends before a damaged frame; where
    that is the first one, raises `ValueError` or `OSError`.
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
    """Returns rows with the columns of this version; NaN where the version that wrote them has no such column."""
    found = np.frombuffer(payload).reshape(-1, len(names))
    if tuple(names) == tuple(wanted):
        return found
    nothing = np.full(len(found), np.nan)
    return np.column_stack([found[:, names.index(name)] if name in names else nothing for name in wanted])
