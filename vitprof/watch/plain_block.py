"""The finished steps of a plain loop, on their way from the thread that trains to the thread that sends."""

from __future__ import annotations

import math
from array import array

import numpy as np

from vitprof.measure.recorder import PlainColumns

WIDTH = 12
"""Figures of a step: its batch (`plain.Fetched`), its end (s) and its loss (NaN: not known)."""


class PlainBlock:
    """Finished steps, one after another without a pause. One thread adds them, another one may take them meanwhile."""

    def __init__(self, first: int, epoch: int) -> None:
        """`first`: the number of the first step."""
        self._next, self._epoch = first, epoch
        self._figures = array("d")
        self.add = self._figures.extend
        """Adds `WIDTH` figures."""
        self.closed = False
        """True once no more steps will come."""

    def take(self) -> PlainColumns | None:
        """Returns the steps since the last call; None if there are none."""
        n = len(self._figures) // WIDTH
        if not n:
            return None
        figures = np.array(self._figures[: n * WIDTH]).reshape(n, WIDTH)
        del self._figures[: n * WIDTH]
        asked, got, samples, depth, dataset_s, transform_s, collate_s, start_s, made_s, worker, end, loss = figures.T
        numbers = np.arange(self._next, self._next + n, dtype=np.float64)
        self._next += n
        return PlainColumns(
            step=numbers,
            epoch=np.full(n, float(self._epoch)),
            t_start=asked,
            t_got=got,
            t_end=end,
            samples=samples,
            loss=loss,
            read_s=np.maximum(0.0, dataset_s - transform_s),
            transform_s=transform_s,
            collate_s=collate_s,
            start_s=start_s,
            end_s=made_s,
            worker=np.where(worker < 0, math.nan, worker),
            queue_depth=depth,
        )
