"""Which steps of a run a trace holds, and these in pieces, so that a run of any length takes the memory of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.store import RunStore, StoredRun

MOST_STEPS = 50_000
"""Steps up to which a trace holds all of a run: 60 MB of JSON, 6 MB compressed. A viewer takes more than its length
for each, in a browser's memory."""
WINDOWS = 100
WINDOW = MOST_STEPS // WINDOWS
"""Steps that a trace holds of each of the `WINDOWS` equal parts of a longer run: neighbours, for what led to what."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring steps of a trace."""

    steps: Series
    first: int
    """Position of the first that counts: 1 where the step before the piece is there too, else 0."""


@dataclass(frozen=True)
class Chosen:
    """What a trace holds of a run."""

    n: int
    """Steps that the run has."""
    n_kept: int
    """Steps of these that the trace holds."""
    windows: tuple[tuple[int, int], ...]
    """Numbers of the first and the last step of each window; empty where all steps are kept."""

    @property
    def sampled(self) -> bool:
        return self.n_kept < self.n


def choose(run: StoredRun, glance: Series, *, whole: bool) -> Chosen:
    """Returns what the trace of a run holds; `glance` has its columns step and step_s.

    Of a run of more than `MOST_STEPS` steps, unless `whole`, the neighbours of the longest step of each part: what
    stands out is in the trace, so shares of time over all that is in it are not those of the run.
    """
    number, took = glance["step"], np.nan_to_num(glance["step_s"])
    n = len(number)
    if whole or n <= MOST_STEPS:
        return Chosen(n, n, ())
    edges = np.linspace(0, n, WINDOWS + 1).astype(int)
    windows = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        longest = begin + int(np.argmax(took[begin:end]))
        first = min(max(longest - WINDOW // 2, begin), end - WINDOW)
        windows.append((int(number[first]), int(number[first + WINDOW - 1])))
    return Chosen(n, WINDOW * WINDOWS, tuple(windows))


def pieces(store: RunStore, run: StoredRun, chosen: Chosen) -> Iterator[Piece]:
    """Yields the steps that were chosen, in order. Steps that follow each other in the run do so here."""
    if chosen.windows:
        for first, last in chosen.windows:
            steps = store.steps(run.id, after=first - 2, until=last)
            yield Piece(steps, int(np.searchsorted(steps["step"], first)))
        return
    before: Series | None = None
    for part in store.steps_in_parts(run.id):
        if before is None:
            yield Piece(part, 0)
        else:
            yield Piece({name: np.concatenate([before[name], values]) for name, values in part.items()}, 1)
        before = {name: values[-1:] for name, values in part.items()}


def sampling_words(kept: Iterable[tuple[StoredRun, Chosen]]) -> str:
    """Returns which runs a trace holds in part, in words; "" where it holds all of each."""
    said = [
        f"run {run.id}: {chosen.n_kept:,} of {chosen.n:,} steps, {WINDOW} around the longest of each "
        f"{chosen.n // WINDOWS:,}"
        for run, chosen in kept
        if chosen.sampled
    ]
    return "; ".join(said)
