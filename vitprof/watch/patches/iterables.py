"""Loaders of any kind, behind a proxy of ours (`vitprof.watch`, loaders of other libraries), and steps
that the script marks (`vitprof.step`)."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import MAKING
from vitprof.watch.patches import Recorder
from vitprof.watch.patches.batch_sizes import batch_sizes

BEGUN, REQUESTED, RECEIVED = int(Kind.BEGUN), int(Kind.REQUESTED), int(Kind.RECEIVED)
EXHAUSTED, ENTERED, LEFT = int(Kind.EXHAUSTED), int(Kind.ENTERED), int(Kind.LEFT)


def record_begun(
    recorder: Recorder,
    iterator: Any,
    loader: Any,
    facts: dict[str, Any],
    since_s: float,
    until_s: float,
) -> None:
    """Records that an iteration over `loader`, of which `facts` are known, was begun."""
    try:
        number = recorder.number(loader, "loader", lambda: dict(facts))
        begun = recorder.number(iterator, "iterator", lambda: {"loader": number})
        recorder.emit((BEGUN, until_s, get_ident(), begun, number, since_s, NAN))
    except Exception as error:
        recorder.give_up(error)


def fetch_recorded(recorder: Recorder, iterator: Any, fetch: Callable[[], Any]) -> Any:
    """Returns what `fetch` returns, the next batch of `iterator`; records the request and the batch.

    A DataLoader inside may be asked meanwhile: those requests are within this one.
    """
    import torch

    if MAKING.now.laps is not None:
        return fetch()
    number = recorder.number(iterator, "iterator")
    thread = get_ident()
    gradients = torch.is_grad_enabled()
    recorder.before_request()
    recorder.emit((REQUESTED, perf_counter(), thread, number, NAN, gradients, NAN))
    try:
        batch = fetch()
    except BaseException as error:
        failed = not isinstance(error, StopIteration)
        now_s = perf_counter()
        recorder.emit((EXHAUSTED, now_s, thread, number, failed, NAN, NAN))
        recorder.exhausted(now_s)
        raise
    now_s = perf_counter()
    try:
        recorder.emit((RECEIVED, now_s, thread, number, *batch_sizes().of(batch)))
        recorder.received(now_s, batch)
    except Exception as error:
        recorder.give_up(error)
    return batch


def record_mark(recorder: Recorder, *, entering: bool) -> None:
    """Records that the script enters or leaves a step that it marks."""
    kind = ENTERED if entering else LEFT
    recorder.emit((kind, perf_counter(), get_ident(), 0, NAN, NAN, NAN))
    if recorder.marks is None:
        return
    if entering:
        recorder.marks.entered()
    else:
        recorder.marks.left()
