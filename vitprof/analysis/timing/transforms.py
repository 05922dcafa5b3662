"""The time that each transform of a watched run's training data takes, from its fact "transforms"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitprof import formats

TRANSFORMS = "transforms"
"""Fact of a run: name -> {"s_per_sample", "calls"}, in the order of the Compose (`vitprof.watch.transforms`)."""
TOLD = 6
"""Transforms that a sentence names at most."""


@dataclass(frozen=True)
class TransformTime:
    """One transform of the Composes that the training data go through."""

    name: str
    """Its class, or the name of its function; a second one of the same name is "Normalize (2)"."""
    s_per_sample: float
    """Mean seconds a sample in the batches after the warm-up, on the clock of the process that makes them."""
    calls: int
    """How often the Compose was called for these batches."""
    frac: float
    """Share of the time of all transforms, 0 to 1; NaN if they take no time."""


def transform_times(facts: Mapping[str, Any]) -> tuple[TransformTime, ...]:
    """Returns the transforms in the order of the Compose; empty if the facts have none."""
    told = facts.get(TRANSFORMS)
    if not isinstance(told, Mapping):
        return ()
    known = {
        name: (float(one["s_per_sample"]), int(one["calls"]))
        for name, one in told.items()
        if isinstance(one, Mapping) and one.get("s_per_sample") is not None and one.get("calls") is not None
    }
    whole_s = math.fsum(seconds for seconds, _ in known.values())
    return tuple(
        TransformTime(name, seconds, calls, seconds / whole_s if whole_s > 0 else math.nan)
        for name, (seconds, calls) in known.items()
    )


def heaviest(found: Sequence[TransformTime]) -> TransformTime | None:
    """Returns the transform that takes longest; None if none takes any time."""
    return max((t for t in found if t.frac > 0), key=lambda t: t.frac, default=None)


def shares_in_words(found: Sequence[TransformTime]) -> str:
    """Returns the largest shares of the transforms' time, the largest first: "RandomResizedCrop 61%, ToTensor 25%"."""
    largest = sorted((t for t in found if t.frac > 0), key=lambda t: -t.frac)
    said = [f"{t.name} {formats.percent(t.frac)}" for t in largest[:TOLD]]
    if (left := len(largest) - TOLD) > 0:
        said.append(f"{left} more {formats.percent(math.fsum(t.frac for t in largest[TOLD:]))}")
    return ", ".join(said)
