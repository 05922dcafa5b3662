"""The loader that trains, as the core names it: what acts on its batches has to know it again."""

from __future__ import annotations

from typing import Any

from vitprof.watch.events import Description


class TrainLoader:
    """The loader that trains, once the core has said which one that is."""

    def __init__(self) -> None:
        self._number = 0
        self._facts: dict[str, Any] = {}
        """What is known of it: one made anew with the same is the same."""

    def name(self, number: int, facts: dict[str, Any]) -> None:
        """Takes the number and the facts of the loader that trains. Any thread may call."""
        self._facts = facts
        self._number = number

    def is_it(self, loader: Description) -> bool:
        """Returns whether a loader is the one that trains, or that one made anew."""
        if loader.number == self._number:
            return True
        if not self._number or loader.facts != self._facts:
            return False
        self._number = loader.number
        return True
