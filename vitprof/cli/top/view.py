"""What a person has chosen to look at in `top`, and what each key changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitprof.cli.top.rows import Sort, next_sort

PAGE = 10
"""Rows, or lines, that a page up or down goes."""
STEPS = {
    "up": -1,
    "down": 1,
    "page up": -PAGE,
    "page down": PAGE,
    "home": -1_000_000,
    "end": 1_000_000,
}
"""Key -> rows, or lines, that it goes; the last two go as far as there are any."""


@dataclass(frozen=True)
class View:
    """What is looked at."""

    sort: Sort = "newest"
    chosen: int | None = None
    """The run whose row is chosen; None before there is one."""
    opened: int | None = None
    """The run whose answer is open; None for the list."""
    offset: int = 0
    """Lines of the list, or of the answer, that are above what is shown."""
    quits: bool = False

    def with_runs(self, listed: Sequence[int]) -> View:
        """Returns the view of a list that has changed: of what is in it, one row is chosen.

        `listed`: the numbers of the runs, in their order.
        """
        if self.chosen in listed:
            return self
        return replace(self, chosen=listed[0] if listed else None)

    def pressed(self, key: str, listed: Sequence[int]) -> View:
        """Returns the view after a key (`keys.NAMES`); a key that means nothing changes nothing."""
        if key == "quit":
            return replace(self, quits=True)
        if self.opened is not None:
            return self._pressed_in_answer(key)
        if key == "sort":
            return replace(self, sort=next_sort(self.sort))
        if key == "enter" and self.chosen in listed:
            return replace(self, opened=self.chosen, offset=0)
        if key in STEPS and listed:
            at = listed.index(self.chosen) if self.chosen in listed else 0
            at = min(max(at + STEPS[key], 0), len(listed) - 1)
            return replace(self, chosen=listed[at])
        return self

    def _pressed_in_answer(self, key: str) -> View:
        if key in ("escape", "left"):
            return replace(self, opened=None, offset=0)
        if key in STEPS:
            # how far there are lines is known where they are drawn
            return replace(self, offset=max(0, self.offset + STEPS[key]))
        return self

    def scrolled(self, chosen: Sequence[int], n_lines: int, room: int) -> View:
        """Returns the view with the offset that shows the chosen row, of `n_lines` lines `room` at
        a time; it changes no more than it must.

        `chosen`: the places of the row's lines; empty for none.
        """
        offset = self.offset
        if chosen:
            offset = max(offset, chosen[-1] + 1 - room)
            offset = min(offset, chosen[0])
        offset = max(0, min(offset, n_lines - room))
        return replace(self, offset=offset)
