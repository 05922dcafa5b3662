"""Collectives of the ranks of a distributed job: how many were begun, and waits for other ranks.

Where a process trains alone nothing is replaced. Collectives that C++ begins, such as
DistributedDataParallel's in the backward pass, call no function of Python; but each group counts its
own.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import MAKING
from vitprof.watch.patches import Recorder, Replacements, loaded
from vitprof.watch.rank_identity import n_ranks

COUNTED, AWAITED = int(Kind.COUNTED), int(Kind.AWAITED)
BROADCAST = "_broadcast_coalesced"
"""The function of `torch.distributed` by which DistributedDataParallel sends buffers (BatchNorm has
some), from rank 0 before each forward pass."""
WAITS = (
    # of all collectives but those in C++
    ("torch.distributed", "Work", "wait", 1),
    ("torch.distributed", "ProcessGroup", "monitored_barrier", 1),
    ("multiprocessing.synchronize", "Barrier", "wait", 0),
)
"""Modules, their classes, the methods in which a process waits for others, and how many collectives
that ends."""


def install(recorder: Recorder) -> Replacements:
    """Makes collectives be counted, and waits recorded, from the first backward pass or optimizer's step
    of a process that is one of several ranks: by then it has joined its group.

    """
    replacements = Replacements()

    def begin() -> None:
        if n_ranks() < 2:
            return
        recorder.count_with(Counting(recorder))
        module = sys.modules.get("torch.distributed")
        if hasattr(module, BROADCAST):
            sending = functools.partial(_broadcast_recorded, recorder)
            replacements.replace(module, BROADCAST, sending)
        for name, kind, method, collectives in WAITS:
            owner = loaded(name, kind)
            if hasattr(owner, method):
                wrap = functools.partial(_wait_recorded, recorder, collectives)
                replacements.keep(ReplacedMethod(owner, method, wrap))

    recorder.on_first_work.append(begin)
    return replacements


class ReplacedMethod:
    """A method of a class, its own or inherited, that is replaced until it is removed."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._own = vars(owner).get(name)
        self._replacement = wrap(getattr(owner, name))
        setattr(owner, name, self._replacement)

    def remove(self) -> None:
        """Restores it, unless another tool has replaced it since."""
        if vars(self._owner).get(self._name) is not self._replacement:
            return
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)


class Counting:
    """Records how many collectives were begun, where that has changed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[int, float] = {}
        """By thread."""

    def __call__(self, now_s: float) -> None:
        """Records it, before the event that has happened at `now_s`."""
        n = n_collectives()
        thread = get_ident()
        last = self._last.get(thread)
        if n != last and not (last is not None and math.isnan(n) and math.isnan(last)):
            self._last[thread] = n
            self._recorder.emit((COUNTED, now_s, thread, 0, n, NAN, NAN))


def n_collectives() -> float:
    """Returns how many collectives this process has begun in all its groups; NaN where PyTorch does not
    count them."""
    try:
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
        return float(sum(group._get_sequence_number_for_group() for group in groups))
    except (KeyError, AttributeError, RuntimeError):
        return NAN


def _record_wait(
    recorder: Recorder, since_s: float, collectives: float, *, sent: bool = False
) -> None:
    now_s = perf_counter()
    making = MAKING.now
    if making.laps is not None:
        # In the dataset of a loader without workers: it is no part of making the batch.
        making.waited_s += now_s - since_s
    recorder.emit((AWAITED, now_s, get_ident(), 0, since_s, collectives, float(sent)))


def _wait_recorded(
    recorder: Recorder, collectives: int, method: Callable[..., Any]
) -> Callable[..., Any]:
    # pybind11 looks for the name of the function that calls: `wait` of the base class would call this
    # one again.
    @functools.wraps(method)
    def wait(awaited: Any, *args: Any, **kwargs: Any) -> Any:
        since_s = perf_counter()
        try:
            return method(awaited, *args, **kwargs)
        finally:
            _record_wait(recorder, since_s, collectives)

    return wait


def _broadcast_recorded(recorder: Recorder, broadcast: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(broadcast)
    def send(*args: Any, **kwargs: Any) -> Any:
        before = n_collectives()
        since_s = perf_counter()
        if recorder.marks is not None:
            recorder.marks.awaiting()
        sent = broadcast(*args, **kwargs)
        if recorder.marks is not None:
            recorder.marks.awaited()
        _record_wait(recorder, since_s, n_collectives() - before, sent=True)
        return sent

    return send
