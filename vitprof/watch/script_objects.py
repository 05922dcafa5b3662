"""Questions to objects of the script: batches, loaders, datasets. What they answer is their own code, which may raise
anything: a dataset that is opened late raises `OSError` at `len`, a property fails before `setup`. An answer that does
not come is not known; it never ends watching.
"""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")


def attribute(of: Any, name: str) -> Any:
    """Returns an attribute; None where there is none, or reading it fails."""
    try:
        return getattr(of, name, None)
    except Exception:
        return None


def length(of: Any) -> int | None:
    """Returns `len(of)`; None where that fails: it has none, or is not open yet, or is negative or no integer."""
    try:
        return len(of)
    except Exception:
        return None


def parts(of: Any) -> list[Any]:
    """Returns what is in a list, a tuple, a mapping, or an object with a method `values`; [] for all else, and where
    its code fails. An attribute `values` is no method in pandas, nor in what `torch.max` returns.
    """
    try:
        if isinstance(of, (list, tuple)):
            return list(of)
        return list(of.values()) if callable(getattr(of, "values", None)) else []
    except Exception:
        return []


def name_of(value: Any) -> str | None:
    """Returns the name of a function or class, else that of its class; None for None."""
    if value is None:
        return None
    # a proxy gives the class that it passes for
    for name in (
        attribute(value, "__name__"),
        attribute(attribute(value, "__class__"), "__name__"),
    ):
        if isinstance(name, str):
            return name
    return type(value).__name__


def whole_number(value: Any) -> int | None:
    """Returns an integer of any kind (NumPy's) as Python's, which JSON takes; None for what is none."""
    is_one = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return int(value) if is_one else None


def is_true(value: Any) -> bool:
    """Returns `bool(value)`; False where that fails, as for an array."""
    try:
        return bool(value)
    except Exception:
        return False


class ByIdentity(Generic[V]):
    """A dictionary by objects that it does not keep alive. Objects are told apart by identity: those of a script may
    have an `__eq__` without a hash, as a DataLoader that is a dataclass has.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def __setitem__(self, key: Any, value: V) -> None:
        """Raises `TypeError` for an object that cannot be referred to weakly."""
        number = id(key)
        entries = self._entries

        def forget(gone: weakref.ref[Any]) -> None:
            kept = entries.get(number)
            if kept is not None and kept[0] is gone:  # else another object has its number by now
                del entries[number]

        entries[number] = weakref.ref(key, forget), value

    def get(self, key: Any) -> V | None:
        reference, value = self._entries.get(id(key), (None, None))
        return value if reference is not None and reference() is key else None

    def __getitem__(self, key: Any) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def items(self) -> Iterator[tuple[weakref.ref[Any], V]]:
        """Yields references to objects that are still there, with what is kept of them."""
        for reference, value in list(self._entries.values()):
            if reference() is not None:
                yield reference, value

    def values(self) -> Iterator[V]:
        """Yields what is kept of objects that are still there."""
        for reference, value in list(self._entries.values()):
            if reference() is not None:
                yield value


@dataclass(frozen=True)
class ScriptLoader:
    """A loader of the script's."""

    facts: dict[str, Any]
    """See `loader_facts`."""
    alive: tuple[weakref.ref[Any], ...]
    """References to it and to its iterators: one that is made in a `for` statement has only these."""
