"""Times each transform of torchvision's Compose, classic and v2.

The loops below are torchvision's own, with a clock. A Compose inside another one counts as one of its transforms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from vitprof.watch.fetch_times import MAKING, Laps

MAX_NAME = 60
NAMED = frozenset((FunctionType, BuiltinFunctionType, MethodType))
"""Types of callables that have a name of their own."""
CLASSIC = (("self", "img", "t"), ("transforms",))
V2 = (("self", "inputs", "needs_unpacking", "transform", "outputs"), ("len", "transforms"))
"""Variables and names in the methods that are replaced. A method with others may do something else: it is only timed as
a whole."""


def timed_compose(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement for the method `call` of a class Compose, which records how long each transform takes for
    the batch that is being made; for an unknown method, how long all of them take together.
    """
    code = getattr(call, "__code__", None)
    known = (code.co_varnames, code.co_names) if code is not None else None
    made = _classic(call) if known == CLASSIC else _v2(call) if known == V2 else _as_a_whole(call)
    return functools.wraps(call)(made)


def _classic(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_timed(self: Any, img: Any) -> Any:
        making = MAKING
        found = making.laps
        if found is None:
            return call(self, img)
        laps = found.get(id(self)) or found.setdefault(id(self), Laps(self))
        seconds = laps.seconds
        making.laps = None
        try:
            began = perf_counter()
            for i, t in enumerate(self.transforms):
                img = t(img)
                ended = perf_counter()
                if i < len(seconds):
                    seconds[i] += ended - began
                else:
                    _first(laps, t, ended - began)
                    ended = perf_counter()
                began = ended
            laps.calls += 1
            return img
        finally:
            making.laps = found

    return call_timed


def _v2(call: Callable[..., Any]) -> Callable[..., Any]:
    def forward_timed(self: Any, *inputs: Any) -> Any:
        making = MAKING
        found = making.laps
        if found is None:
            return call(self, *inputs)
        laps = found.get(id(self)) or found.setdefault(id(self), Laps(self))
        seconds = laps.seconds
        making.laps = None
        try:
            needs_unpacking = len(inputs) > 1
            began = perf_counter()
            for i, transform in enumerate(self.transforms):
                outputs = transform(*inputs)
                inputs = outputs if needs_unpacking else (outputs,)
                ended = perf_counter()
                if i < len(seconds):
                    seconds[i] += ended - began
                else:
                    _first(laps, transform, ended - began)
                    ended = perf_counter()
                began = ended
            laps.calls += 1
            return outputs
        finally:
            making.laps = found

    return forward_timed


def _as_a_whole(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        making = MAKING
        found = making.laps
        if found is None:
            return call(self, *args, **kwargs)
        laps = found.get(id(self)) or found.setdefault(id(self), Laps(self))
        making.laps = None
        began = perf_counter()
        try:
            return call(self, *args, **kwargs)
        finally:
            took = perf_counter() - began
            laps.calls += 1
            if laps.seconds:
                laps.seconds[0] += took
            else:
                _first(laps, self, took)
            making.laps = found

    return call_timed


def _first(laps: Laps, transform: Any, took_s: float) -> None:
    """Adds a transform that is called for the first time in this batch."""
    laps.names.append(name_of(transform))
    laps.seconds.append(took_s)


def name_of(transform: Any) -> str:
    """Returns the name of a transform: of the function, of the function in a `functools.partial`, else of the class; at
    most `MAX_NAME` characters.
    """
    kind = type(transform)
    if kind is functools.partial:
        return name_of(transform.func)
    named = kind in NAMED or isinstance(transform, type)
    return str(transform.__name__ if named else kind.__name__)[:MAX_NAME]
