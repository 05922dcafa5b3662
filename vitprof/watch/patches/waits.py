"""Calls that return what another thread or process of the script has made: batches may come so, in
place of `next(loader)`.

Calls by PyTorch's own loader within `next()` are recorded, too: the core knows them by what is
around them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.patches import Recorder, Replacements, loaded
from vitprof.watch.script_objects import attribute, parts

WAITED, GIVEN = int(Kind.WAITED), int(Kind.GIVEN)
TAKEN_FROM = (
    ("queue", "Queue", "get"),
    ("multiprocessing.queues", "Queue", "get"),
    ("multiprocessing.queues", "SimpleQueue", "get"),
    ("multiprocessing.pool", "IMapIterator", "next"),
    ("multiprocessing.pool", "IMapIterator", "__next__"),
    ("concurrent.futures._base", "Future", "result"),
)
"""Modules, their classes, and the methods that return what another thread or process has made."""
GIVEN_TO = (("queue", "Queue", "put"), ("concurrent.futures._base", "Future", "set_result"))
"""The same, of methods by which a thread gives what it has made. A loop may learn of that by another call
(`concurrent.futures.wait`, asyncio, `Future.done`), and then get it at once."""


def install(recorder: Recorder) -> Replacements:
    """Replaces the methods `TAKEN_FROM` of the classes that are imported by now.

    gevent puts classes of its own in their place, which cannot be changed or inherit the method: waits
    for those are not recorded.
    """
    replacements = Replacements()
    for methods, recorded in ((TAKEN_FROM, _wait_recorded), (GIVEN_TO, _giving_recorded)):
        for module, kind, name in methods:
            owner = loaded(module, kind)
            if name in getattr(owner, "__dict__", ()):
                wrap = functools.partial(recorded, recorder, kind)
                with contextlib.suppress(TypeError):
                    replacements.replace(owner, name, wrap)
    return replacements


def _giving_recorded(
    recorder: Recorder, kind: str, method: Callable[..., Any]
) -> Callable[..., Any]:
    def record(given_to: Any, given: tuple[Any, ...]) -> None:
        now_s = perf_counter()
        try:
            first = next((array for item in given for array in arrays(item)), None)
            if first is not None:
                number = recorder.number(given_to, "source", lambda: {"class_name": kind})
                recorder.emit((GIVEN, now_s, get_ident(), number, id(first), NAN, NAN))
        except Exception as error:
            recorder.give_up(error)

    @functools.wraps(method)
    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        # before: who waits for it may be faster than this thread
        record(self, (*args, *kwargs.values()))
        return method(self, *args, **kwargs)

    return give


def _wait_recorded(recorder: Recorder, kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def record(waited_on: Any, since_s: float, item: Any) -> None:
        now_s = perf_counter()
        try:
            first = next(arrays(item), None)
            number = recorder.number(waited_on, "source", lambda: {"class_name": kind})
            tensor, rows = (NAN, NAN) if first is None else (id(first), n_rows(first))
            recorder.emit((WAITED, now_s, get_ident(), number, since_s, tensor, rows))
            if first is not None and (recorder.notes or now_s >= recorder.look_at_s):
                recorder.took(now_s, item)
        except Exception as error:
            recorder.give_up(error)

    def before_taking() -> None:
        try:
            recorder.before_taking()
        except Exception as error:
            recorder.give_up(error)

    @functools.wraps(method)
    def take(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.notes:
            before_taking()
        since_s = perf_counter()
        try:
            item = method(self, *args, **kwargs)
        except Exception:
            # Such as a queue that was empty: the call that succeeds goes on with this wait.
            record(self, since_s, None)
            raise
        record(self, since_s, item)
        return item

    return take


def n_rows(array: Any) -> int:
    """Returns the length of a tensor or an array; 0 where it has none."""
    try:
        return int(array.shape[0])
    except Exception:  # a scalar, or a shape that is none of numbers
        return 0


def arrays(item: Any, depth: int = 3) -> Iterator[Any]:
    """Yields the tensors and arrays in what came from a queue: a batch, one with its number, an object
    that has it.
    """
    if attribute(item, "dtype") is not None and attribute(item, "shape") is not None:
        yield item
    elif depth and not issubclass(type(item), (str, bytes, type)):
        for part in parts(item) or parts(attribute(item, "__dict__")):
            yield from arrays(part, depth - 1)
