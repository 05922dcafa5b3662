"""The transforms of the loaders that feed a training, and the work of making their batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from vitprof.watch.events import WORK, Description

KIND = "stages"
"""The kind of a description with the sums of a loader."""


def stage_facts(described: Iterable[Description], feeding: Iterable[int]) -> dict[str, Any]:
    """Returns the facts "transforms", by name with seconds a sample and calls, and "making", of the
    loaders `feeding`."""
    loaders = set(feeding)
    samples = 0
    composes: dict[tuple[str, ...], tuple[int, list[float]]] = {}
    for sums in described:
        if sums.kind != KIND or sums.facts["loader"] not in loaders:
            continue
        samples += sums.facts["samples"]
        for names, calls, sent in sums.facts["composes"]:
            # On the way what is not known is null.
            seconds = [math.nan if each is None else each for each in sent]
            calls_before, before = composes.get(tuple(names), (0, [0.0] * len(names)))
            summed = [a + b for a, b in zip(before, seconds, strict=True)]
            composes[tuple(names)] = (calls_before + calls, summed)
    facts: dict[str, Any] = {}
    if WORK in composes:
        batches, seconds = composes.pop(WORK)
        facts["making"] = {**dict(zip(WORK, seconds, strict=True)), "batches": batches}
    transforms: dict[str, Any] = {}
    used: Counter[str] = Counter()
    for names, (calls, seconds) in composes.items():
        for name, took_s in zip(names, seconds, strict=True):
            used[name] += 1
            key = f"{name} ({used[name]})" if used[name] > 1 else name
            transforms[key] = {"s_per_sample": took_s / max(1, samples), "calls": calls}
    if transforms:
        facts["transforms"] = transforms
    return facts
