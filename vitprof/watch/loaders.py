"""The loaders of a script that were iterated over, and what is known of each."""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any, NamedTuple


class Begun(NamedTuple):
    """Moments of the beginning of an iteration."""

    since_s: float
    until_s: float
    told_s: float
    """When the script could go on: until then it was our own cost."""


UNKNOWN = Begun(math.nan, math.nan, math.nan)


class Seen:
    """A DataLoader, or what stands for a loader, that was iterated over."""

    def __init__(self, facts: dict[str, Any], *, declared: bool = False, stands_for: bool = False) -> None:
        self.facts = facts
        """Its arguments."""
        self.declared = declared
        """Whether the script said that it trains: see `Loop.declare`."""
        self.stands_for = stands_for
        """Whether it stands for a loader of any kind: each batch is a step even where nothing tells of work on it."""
        self.begun = UNKNOWN
        """The beginning of its last iteration, until its first batch is asked for."""
        self.alive: tuple[weakref.ref[Any], ...] = ()
        """Itself, and its last iterator."""

    def is_last(self, iterator: Any) -> bool:
        """Returns whether this is its last iterator."""
        return bool(self.alive) and self.alive[-1]() is iterator

    @property
    def is_alive(self) -> bool:
        """Returns whether it can still give a batch."""
        return any(ref() is not None for ref in self.alive)


class Loaders:
    """Knows loaders by themselves and by their iterators: of one made in a `for` that is all there is left."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
        self._declared: list[weakref.ref[Any]] = []
        """The loaders that the script names, and their data sets."""
        self.declares = False
        """Whether the script says which loader trains: no other one does."""

    def declare(self, loader: Any, facts: dict[str, Any] | None = None) -> None:
        """Notes that `loader` trains: no optimizer has to tell, and no other loader does. So does one of its data set.

        `facts`: what is known of one that is no DataLoader, see `session.loader_facts`.
        """
        self.declares = True
        for each in (loader, getattr(loader, "dataset", None)):
            with contextlib.suppress(TypeError):  # a list, or None
                self._declared.append(weakref.ref(each))
        if facts is not None:
            self._seen[loader] = Seen(facts, declared=True, stands_for=True)

    def of(self, loader_or_iterator: Any) -> Seen | None:
        """Returns what is known of a loader, by itself or by its iterator; None for one that has not begun."""
        return self._seen.get(loader_or_iterator)

    def begun(self, loader: Any, iterator: Any) -> Seen:
        """Notes that an iteration over `loader` has begun."""
        if loader not in self._seen:
            from vitprof.watch.session import loader_facts

            declared = any(ref() is each for ref in self._declared for each in (loader, loader.dataset))
            self._seen[loader] = Seen(loader_facts(loader), declared=declared)
        seen = self._seen[iterator] = self._seen[loader]
        seen.alive = (weakref.ref(loader), weakref.ref(iterator))
        return seen
