"""Keeps a job's steps as they arrive, so that summing them up need not read them back from the run store.

SQLite gives rows as Python objects, which takes 4.0 to 4.6 s for a million steps; this takes 0.1 s.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.analysis.arrays import Series
from vitprof.recording.columns import STEP_COLUMNS

IN_MEMORY_BYTES = 1 << 20
"""Most bytes in memory; more are in a temporary file without a name. A step takes 240."""
ROW_BYTES = 8 * len(STEP_COLUMNS)
ROWS_AT_ONCE = 16_384


class KeptSteps:
    """The steps of one job: one thread adds them, another one may read them meanwhile."""

    def __init__(self, in_memory: int = IN_MEMORY_BYTES) -> None:
        self._file: Any = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 (closed by `finalize`)
        self._is_whole = True
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._file)

    def add(self, matrices: Iterable[NDArray[np.float64]]) -> None:
        """Adds finished steps, (n, len(STEP_COLUMNS)) float64 each. Where the file cannot take them, keeps none."""
        with self._lock:
            if not self._is_whole:
                return
            try:
                for rows in matrices:
                    self._file.write(rows.tobytes())
            except OSError:
                self._is_whole = False
                _close(self._file)

    def read(self, n: int) -> Series | None:
        """Returns the steps as `RunStore.steps` does if there are `n`, in order; None if the store has to be asked."""
        with self._lock, contextlib.suppress(OSError):  # a write that failed late
            if not self._is_whole or self._file.seek(0, os.SEEK_END) != n * ROW_BYTES:
                return None
            self._file.seek(0)
            whole, at = np.empty((len(STEP_COLUMNS), n)), 0
            while part := self._file.read(ROWS_AT_ONCE * ROW_BYTES):
                rows = np.frombuffer(part).reshape(-1, len(STEP_COLUMNS))
                whole[:, at : at + len(rows)] = rows.T
                at += len(rows)
            steps = dict(zip(STEP_COLUMNS, whole, strict=True))
            return steps if (np.diff(steps["step"]) > 0).all() else None
        return None


def _close(file: Any) -> None:
    with contextlib.suppress(OSError):
        file.close()
