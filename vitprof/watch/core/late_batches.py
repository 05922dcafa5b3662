"""Which batches came late, and who made them: told to the program that may have looked at the script
while it waited."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import Description

LATE_S = 0.1
"""A shorter wait (s) is never late."""


def late_batches(
    first: int, steps: Iterable[Step], descriptions: Mapping[int, Description]
) -> list[dict[str, Any]]:
    """Returns what is known of each wait of at least `LATE_S` in some steps, of which the first has this
    number; not of the first one of an iteration, which may start workers.

    Known are the step, when the batch was requested (of one from a loader inside another, both times),
    how long was waited, from when to when it was made, by which worker, and in which process. None
    stands for what is not known, and for the worker of a batch that the loop's process made.
    """
    return [
        _told(number, fetch, descriptions)
        for number, step in enumerate(steps, first)
        for fetch in step.fetches
        if fetch.wait_s >= LATE_S and not (fetch.first or fetch.exhausted)
    ]


def _told(step: int, fetch: Fetch, descriptions: Mapping[int, Description]) -> dict[str, Any]:
    made = fetch.stages
    told: dict[str, Any] = {
        "step": step,
        "requested_s": list(_requests(fetch)),
        "waited_s": fetch.wait_s,
        "begun_s": None if made is None else made.start_s,
        "made_s": None if made is None else made.end_s,
        "worker": None,
        "pid": None,
    }
    if made is None or math.isnan(made.worker):
        return told
    worker = int(made.worker)
    return {**told, "worker": worker, "pid": _process(fetch, worker, descriptions)}


def _requests(fetch: Fetch) -> Iterator[float]:
    yield fetch.requested_s - fetch.held_up_s
    for inner in fetch.inside:
        yield from _requests(inner)
    if fetch.is_from is not None:
        yield fetch.is_from.requested_s - fetch.is_from.held_up_s


def _process(fetch: Fetch, worker: int, descriptions: Mapping[int, Description]) -> int | None:
    """Returns the process of the worker that made a batch."""
    maker = fetch
    while maker.made is None and maker.is_from is not None:
        maker = maker.is_from
    iterator = descriptions.get(maker.iterator)
    pids = [] if iterator is None else iterator.facts.get("pids", [])
    return pids[worker] if worker < len(pids) else None


def worker_processes(descriptions: Iterable[Description]) -> list[int]:
    """Returns the processes of the workers of all iterators that are described."""
    return [
        pid
        for described in descriptions
        if described.kind == "iterator"
        for pid in described.facts.get("pids", ())
        if pid is not None
    ]
