"""Things that are chosen by name, and the message where a name is not known."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from vitprof.errors import ConfigError

T = TypeVar("T", bound=Any)


def by_name(*entries: T) -> dict[str, T]:
    return {entry.name: entry for entry in entries}


class Catalog(Mapping[str, T]):
    """What can be chosen by name: vitprof's `own`, and what `find` returns or raises KeyError for.

    `listed`: names for `find` that are shown in lists; it may know others.
    """

    def __init__(
        self, own: Mapping[str, T], find: Callable[[str], T], listed: Callable[[], Iterable[str]]
    ) -> None:
        self._own = own
        self._find = find
        self._listed = listed

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        return self._find(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self._listed()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def chosen(known: Mapping[str, T], field: str, name: str) -> T:
    """Returns the entry called `name`.

    Raises `ConfigError` about `field` that lists the known names for any other name.
    """
    if name not in known:
        raise ConfigError(field, name, f"choose one of {', '.join(known)}")
    return known[name]
