"""The transforms of the loaders that feed a training, and the work of making their batches."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from vitprof.measure.core_use import NOTHING, USE, CoreTimes, as_facts, divide
from vitprof.watch.events import CORES_OF_COMPOSE, CORES_OF_STAGES, WORK, Description

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
            calls_before, before = composes.get(tuple(names), (0, [0.0] * len(seconds)))
            summed = [a + b for a, b in zip(before, seconds, strict=True)]
            composes[tuple(names)] = (calls_before + calls, summed)
    facts: dict[str, Any] = {}
    if WORK in composes:
        batches, seconds = composes.pop(WORK)
        facts["making"] = {**dict(zip(WORK, seconds, strict=True)), "batches": batches}
    cores_of = {
        names[1:]: composes.pop(names) for names in list(composes) if names[0] == CORES_OF_COMPOSE
    }
    stages = composes.pop(CORES_OF_STAGES, None)
    if "making" in facts and stages is not None:
        looked_batches, numbers = stages
        of_transforms = [use for _, each in cores_of.values() for use in _uses(each)]
        facts["making"]["stages"] = _of_stages(numbers, of_transforms)
        facts["making"]["looked_batches"] = looked_batches
    transforms: dict[str, Any] = {}
    used: Counter[str] = Counter()
    for names, (calls, seconds) in composes.items():
        looked_calls, of_cores = cores_of.get(names, (0, []))
        uses = [dict(zip(USE, use, strict=True)) for use in _uses(of_cores)] or [{}] * len(names)
        for name, took_s, use in zip(names, seconds, uses, strict=True):
            used[name] += 1
            key = f"{name} ({used[name]})" if used[name] > 1 else name
            s_per_sample = took_s / max(1, samples)
            transforms[key] = {"s_per_sample": s_per_sample, "calls": calls}
            transforms[key] |= {
                f"{what}_per_sample": s_per_sample * seconds / use["took_s"]
                for what, seconds in use.items()
                if what != "took_s" and use["took_s"] > 0
            }
            if use:
                per_call_s = use["took_s"] / looked_calls
                transforms[key]["looked_s_per_sample"] = per_call_s * calls / max(1, samples)
    if transforms:
        facts["transforms"] = transforms
    return facts


def _uses(numbers: list[float]) -> list[CoreTimes]:
    """Returns what each stage or transform used, of four numbers for each."""
    firsts = range(0, len(numbers), len(USE))
    return [CoreTimes(*numbers[at : at + len(USE)]) for at in firsts]


def _of_stages(numbers: list[float], transforms: list[CoreTimes]) -> dict[str, Any]:
    """Returns what the dataset without its transforms, transforms and collate used in the batches that were looked at.

    Of the transforms only some calls were looked at: the others are taken to be like them.
    """
    *of_stages, transform_s = numbers
    dataset, collate = _uses(of_stages)
    calls = functools.reduce(CoreTimes.plus, transforms, NOTHING)
    parts = divide(dataset, {"transform": calls}, {"transform": transform_s}, rest="read")
    return as_facts({"transform": NOTHING, **parts, "collate": collate})
