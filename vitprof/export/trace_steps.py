"""Chooses the steps of a run that a trace holds, and reads them in pieces, so that not all are in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.store import RunStore, StoredRun

MOST_STEPS = 50_000
"""The most steps of a run that a trace holds whole: 60 MB of JSON, 6 MB compressed. In a browser, a viewer takes more
memory than that."""
WINDOWS = 100
WINDOW = MOST_STEPS // WINDOWS
"""Steps that a trace holds of each of the `WINDOWS` equal parts of a longer run: neighbours show what led to what."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring steps of a trace."""

    steps: Series
    first: int
    """Index of the first step that counts: 1 where the step before the piece is included too, otherwise 0."""


@dataclass(frozen=True)
class Chosen:
    """The steps of a run that its trace holds."""

    n: int
    """Number of steps that the run has."""
    n_kept: int
    """Number of these that the trace holds."""
    windows: tuple[tuple[int, int], ...]
    """Numbers of the first and the last step of each window; empty where all steps are kept."""

    @property
    def sampled(self) -> bool:
        """Returns whether the trace holds only some of the run's steps."""
        return self.n_kept < self.n


def choose(run: StoredRun, glance: Series, *, whole: bool) -> Chosen:
    """Returns which steps the trace of a run holds; `glance` has the run's columns step and step_s.

    Of a run of more than `MOST_STEPS` steps, unless `whole`, these are the neighbours of the longest step of each part.
    Such a trace shows what stands out, so shares of time over all of it are not those of the run.
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
    """Yields the chosen steps of a run in order, in pieces of neighbouring steps."""
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
    """Returns which runs a trace holds only in part, in words; "" where it holds all of each."""
    said = [
        f"run {run.id}: {chosen.n_kept:,} of {chosen.n:,} steps, {WINDOW} around the longest of each "
        f"{chosen.n // WINDOWS:,}"
        for run, chosen in kept
        if chosen.sampled
    ]
    return "; ".join(said)
