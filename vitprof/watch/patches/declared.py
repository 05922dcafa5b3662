"""DataLoaders that the script says it trains on (`vitprof.watch`)."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from vitprof.watch.script_objects import attribute


class DeclaredLoaders:
    """Which they are: frameworks may make others of the same data sets."""

    def __init__(self) -> None:
        self._names: list[tuple[weakref.ref[Any], str]] = []
        """Loaders, and their data sets, with the name of the run."""
        self.any_begun = False
        """Whether any of them was looped over."""

    def add(self, loader: Any, name: str) -> None:
        """Notes that the script trains on a DataLoader, or on one that is made of the same data set, in
        the run of this name."""
        for each in (loader, attribute(loader, "dataset")):
            with contextlib.suppress(TypeError):  # a list, or None
                self._names.append((weakref.ref(each), name))

    def facts_as_begun(self, loader: Any) -> dict[str, Any]:
        """Returns what is to be added to the facts of a DataLoader that is looped over, if it is one of
        them."""
        candidates = [each for each in (loader, attribute(loader, "dataset")) if each is not None]
        for reference, name in self._names:
            if any(reference() is each for each in candidates):
                self.any_begun = True
                return {"name": name, "declared": True}
        return {}
