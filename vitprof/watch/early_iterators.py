"""The next iterator of a loader begins before its current one ends: its workers start, and make the first batches
of the next epoch, while the loop still trains on the last ones of this epoch.

PyTorch begins an epoch when the script asks for it, and the loop then waits for workers and a first batch. Early is the
moment at which the sampler has no more indices to give out: all that is left of the epoch is being made.

The iterator is made with the random numbers of that moment, and they are put back afterwards. If nothing has drawn
others until the script begins the epoch, it gets the very batches that it would get without this. If something has
(such as the iterator of a validation loader), the order of samples and what workers draw are others.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

from vitprof.watch.packing import ITERATOR
from vitprof.watch.script_objects import ByIdentity, attribute

EPOCH = "_vitprof_epoch"
"""Attribute of an iterator: what is known of its epoch."""
OTHER_NUMBERS = (
    "across_epochs=on: random numbers were drawn between the early beginning of an epoch and the script's own, as by a "
    "validation loader; so its samples come in another order than in the unchanged script"
)
NEVER_TAKEN = (
    "across_epochs=on changes nothing, so this is the setting without: no iterator of the loader could begin early "
    "(its class has an __iter__ of its own, or the loop ends each epoch before the sampler does)"
)
EPOCH_IS_SET = (
    "across_epochs=on cannot be tried: the script sets the epoch of its sampler or dataset (set_epoch) before each "
    "epoch, and an iterator that begins earlier has the order of the epoch before"
)
Listener = Callable[[Any, Any, float], None]
"""Takes an iterator that the script is given, its loader, and when it was asked for."""


class _Now(threading.local):
    """What this thread is doing."""

    loader: Any = None
    """The loader whose next iterator it begins early."""


_now = _Now()
_listeners: list[Listener] = []


def is_beginning() -> bool:
    """Returns whether this thread is beginning an iterator that nobody has asked for yet."""
    return _now.loader is not None


def listen(listener: Listener) -> Callable[[], None]:
    """Has a function called for each early iterator once the script is given it. Returns what ends that."""
    _listeners.append(listener)
    return functools.partial(_listeners.remove, listener)


class _Source(NamedTuple):
    """A generator of random numbers."""

    read: Callable[[], Any]
    """Returns its state, which can be compared."""
    write: Callable[[Any], None]


def _sources(loader: Any) -> Iterator[_Source]:
    """Yields what an iterator of a loader may draw random numbers from in the process that trains."""
    import torch

    yield _Source(random.getstate, random.setstate)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield _Source(*_of_numpy(numpy))
    generators = [torch.default_generator]
    samplers = [attribute(loader, "sampler"), attribute(loader, "batch_sampler")]
    for holder in (loader, *samplers, attribute(samplers[1], "sampler")):
        generator = attribute(holder, "generator")
        is_new = all(generator is not known for known in generators)
        if isinstance(generator, torch.Generator) and is_new:
            generators.append(generator)
    for generator in generators:
        yield _Source(*_of_torch(generator))


def _of_torch(generator: Any) -> tuple[Callable[[], bytes], Callable[[bytes], None]]:
    import torch

    def read() -> bytes:
        return bytes(generator.get_state().numpy())

    def write(state: bytes) -> None:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    return read, write


def _of_numpy(module: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def read() -> Any:
        name, keys, *rest = module.get_state()
        return name, tuple(keys.tolist()), *rest

    return read, module.set_state


@dataclass
class _Epoch:
    """What is known of the epoch of an iterator."""

    loader: weakref.ref[Any]
    is_given_out: bool = False
    """Whether the sampler has no more indices."""
    has_next: bool = False
    """Whether the iterator of the next epoch was begun."""


@dataclass(frozen=True)
class _Early:
    """An iterator that nobody has asked for yet."""

    iterator: Any
    drawn: list[tuple[_Source, Any, Any]]
    """The generators that its beginning drew from, with their states before and after."""
    epochs: tuple[Any, ...]
    """The epochs that were set at its loader."""


class EarlyIterators:
    """The next iterators of the loaders that a trial changes."""

    def __init__(
        self,
        is_changed: Callable[[Any], bool],
        say: Callable[[str], None],
        unused: Callable[[str], None],
    ) -> None:
        """`is_changed`: whether the trial changes a loader. `say` takes a line for the user, `unused` why the
        trial is one of the setting without this."""
        self._is_changed = is_changed
        self._say = say
        self._unused = unused
        self._waiting = ByIdentity[list[_Early]]()
        self._begun = ByIdentity[list[bool]]()
        """Whether each iterator that the script was given had begun early."""
        self._has_said = False
        self._is_unused = False

    def patch(self, dataloader: ModuleType) -> None:
        """Patches `torch.utils.data.dataloader`, or a module with classes like its own."""
        loader = vars(dataloader).get("DataLoader")
        if loader is not None and loader.__module__ == dataloader.__name__:
            loader.__iter__ = self._taking(loader.__iter__)
            base = dataloader._BaseDataLoaderIter
            base._next_index = self._noting_the_end(base._next_index)
        for name, kind in vars(dataloader).items():
            if name.endswith(ITERATOR) and "_next_data" in vars(kind):
                kind.__init__ = self._noting_the_loader(kind.__init__)
                kind._next_data = self._beginning_the_next(kind._next_data)

    def _taking(self, begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(begin)
        def take(loader: Any) -> Any:
            since_s = perf_counter()
            early = self._taken(loader)
            if early is None:
                return begin(loader)
            for listener in _listeners:
                listener(early, loader, since_s)
            return early

        return take

    def _taken(self, loader: Any) -> Any | None:
        """Returns the iterator that has begun early for a loader; None where there is none to be used."""
        if not self._is_changed(loader):
            return None
        waiting = self._waiting.get(loader)
        early = waiting.pop() if waiting else None
        if early is not None and early.epochs != _epochs_of(loader):
            early.iterator._shutdown_workers()
            self._end(EPOCH_IS_SET)
            return None
        if early is None:
            return None
        self._count(loader, is_early=True)
        if not self._draw(early) and not self._has_said:
            self._has_said = True
            self._say(OTHER_NUMBERS)
        return early.iterator

    def _count(self, loader: Any, *, is_early: bool) -> None:
        begun = self._begun.get(loader)
        if begun is None:
            begun = self._begun[loader] = []
        begun.append(is_early)
        if begun == [False, False]:
            self._end(NEVER_TAKEN)

    def _end(self, why: str) -> None:
        """Says once why the trial shows nothing."""
        if not self._is_unused:
            self._is_unused = True
            self._unused(why)

    def _draw(self, early: _Early) -> bool:
        """Draws the random numbers of an iterator's beginning where they are those that it would draw now.
        Returns whether all of them are."""
        is_same = [source.read() == before for source, before, _ in early.drawn]
        if all(is_same):
            for source, _, after in early.drawn:
                source.write(after)
        return all(is_same)

    def _noting_the_loader(self, begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def begin_noted(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_changed(loader) and not hasattr(iterator, EPOCH):
                setattr(iterator, EPOCH, _Epoch(weakref.ref(loader)))
                if not is_beginning():
                    self._count(loader, is_early=False)
            begin(iterator, loader, *args, **kwargs)

        return begin_noted

    def _noting_the_end(self, next_index: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(next_index)
        def next_noted(iterator: Any) -> Any:
            try:
                return next_index(iterator)
            except StopIteration:
                epoch = getattr(iterator, EPOCH, None)
                if epoch is not None:
                    epoch.is_given_out = True
                raise

        return next_noted

    def _beginning_the_next(self, next_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(next_data)
        def next_then_begin(iterator: Any) -> Any:
            data = next_data(iterator)
            epoch = getattr(iterator, EPOCH, None)
            if epoch is not None and epoch.is_given_out and not epoch.has_next:
                epoch.has_next = True
                loader = epoch.loader()
                if loader is not None:
                    self._begin(loader)
            return data

        return next_then_begin

    def _begin(self, loader: Any) -> None:
        """Begins the next iterator of a loader, and puts back the random numbers that this draws."""
        sources = list(_sources(loader))
        before = [source.read() for source in sources]
        _now.loader = loader
        try:
            iterator = loader._get_iterator()
        finally:
            _now.loader = None
        drawn = []
        for source, was in zip(sources, before, strict=True):
            now = source.read()
            if now != was:
                drawn.append((source, was, now))
                source.write(was)
        early = _Early(iterator, drawn, _epochs_of(loader))
        waiting = self._waiting.get(loader)
        if waiting is None:
            waiting = self._waiting[loader] = []
        waiting.append(early)


def _epochs_of(loader: Any) -> tuple[Any, ...]:
    """Returns the epochs that a script has set at what decides the order of a loader's samples."""
    batches = attribute(loader, "batch_sampler")
    holders = (
        attribute(loader, "sampler"),
        batches,
        attribute(batches, "sampler"),
        attribute(loader, "dataset"),
    )
    return tuple(attribute(holder, "epoch") for holder in holders)
