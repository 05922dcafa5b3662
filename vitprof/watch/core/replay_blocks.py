"""Blocks of steps on kept batches, and on new ones: what each took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Note
from vitprof.watch.core.loop import Step

SUMMED = ("step_s", "compute_s", "data_wait_s")
SEVERAL_LOADERS = "a step asks several loaders for a batch, and those of one alone are kept"


class ReplayBlocks:
    """The sums of the times of all blocks so far. Those with odd numbers are on kept batches: these steps
    are no part of the run."""

    def __init__(self, phase: str = "headroom") -> None:
        """`phase`: the name of the span of steps that are no part of the run."""
        self._phase = phase
        self._sums: dict[int, Counter[str]] = {}
        self._current = 0
        self._since_s = np.nan
        """When the steps on kept batches began that go on."""
        self._until_s = np.nan
        self.refused = ""
        """Why the core asked for new batches alone; "" where it did not."""

    def add(self, steps: Sequence[Step], columns: Columns) -> tuple[Columns, list[Note]]:
        """Adds steps, with their columns. Returns the columns of those that are of the run, numbered
        from the first one's number, and the times of the blocks on kept batches that are over."""
        replays = np.array([_block(step) % 2 == 1 for step in steps])
        phases = list[Note]()
        for i, step in enumerate(steps):
            block = _block(step)
            self._current = max(self._current, block)
            took: dict[str, Any] = {name: float(columns[name][i]) for name in SUMMED}
            # Before a device is known to train its marks are missing.
            is_known = all(map(np.isfinite, took.values()))
            if is_known and not (_is_settling(step) or columns["warmup"][i]):
                self._sums.setdefault(block, Counter()).update({"steps": 1, **took})
            if replays[i] and np.isnan(self._since_s):
                self._since_s = columns["t_start_s"][i]
            elif not replays[i] and not np.isnan(self._since_s):
                phases.append(_phase(self._phase, self._since_s, self._until_s))
                self._since_s = np.nan
            self._until_s = step.end_s
        settling = [_is_settling(step) for step in steps]
        own = {name: column[~replays] for name, column in columns.items()}
        own["warmup"] = np.maximum(own["warmup"], np.array(settling, float)[~replays])
        own["step"] = columns["step"][0] + np.arange(len(own["step"]), dtype=float)
        return own, phases

    def facts(self, refused: str) -> dict[str, Any]:
        """Returns the facts "replay", of each ended block its steps and sums of seconds, and
        "replay_refused"."""
        ended = {
            str(block): dict(sums)
            for block, sums in sorted(self._sums.items())
            if block < self._current
        }
        return {"replay": ended, "replay_refused": refused or self.refused or None}


def _block(step: Step) -> int:
    # The first one may be the end of the iteration before it.
    return step.fetches[-1].block if step.fetches else 0


def _is_settling(step: Step) -> bool:
    return bool(step.fetches) and step.fetches[-1].is_settling


def _phase(name: str, since_s: float, until_s: float) -> Note:
    return Note("phase", {"name": name, "t_start_s": since_s, "t_end_s": until_s})


def asks_several(steps: Sequence[Step]) -> bool:
    """Returns whether a step has batches of several loaders."""
    return any(len(step.loaders) > 1 for step in steps)
