"""What else is known of the steps that are given out: what an asynchronous device did, what is a rank's
own, how the script prepares its batches. One object for all three, as events arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitprof.watch.core.device_columns import DeviceFigures, DeviceSteps
from vitprof.watch.core.log import event_of
from vitprof.watch.core.loop import Step
from vitprof.watch.core.preparation import LOOKS, PreparedSteps
from vitprof.watch.core.rank_own_times import RankStepFigures, RankSteps
from vitprof.watch.events import OF_DEVICE, Event, Kind, Row

KINDS = (*OF_DEVICE, Kind.COUNTED, Kind.AWAITED, *LOOKS)
"""The kinds of events that are needed for it."""
NUMBERS = frozenset(float(kind) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Some steps in order, as `columns.columns_of` takes them."""

    steps: list[Step]
    device: list[DeviceFigures | None]
    """Of each step; None where the device works at once, or is not timed."""
    ranks: list[RankStepFigures | None]
    """Of each step; None where no other ranks train."""


class StepFigures:
    """Gives out each settled step once all of its figures are known."""

    def __init__(self, warmup_steps: int) -> None:
        """`warmup_steps`: so many at the beginning count in no fact."""
        self.device = DeviceSteps(warmup_steps)
        self._ranks = RankSteps(warmup_steps)
        self._prepared = PreparedSteps(warmup_steps)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Adds events that have arrived, as rows."""
        self.add_events(event_of(row) for row in rows if row[0] in NUMBERS)

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds events that have arrived. Those that are not needed are left out."""
        needed = [event for event in events if event.kind in KINDS]
        self.device.add(needed, ())
        self._ranks.add(needed)
        self._prepared.add(needed)

    def take(self, thread: int, settled: Sequence[Step], *, finished: bool = False) -> StepBlock:
        """Returns the steps that can be given out by now, and were not before.

        `thread`: the one that trains. `settled`: the steps that are settled since the last call; on a
        device that works on its own they wait for that. `finished`: nothing more will come.
        """
        self.device.add((), settled)
        steps, device = self.device.take(thread, finished=finished)
        ranks = self._ranks.take(thread, steps, device)
        self._prepared.take(thread, steps, device)
        return StepBlock(steps, device, ranks)

    def facts(self) -> dict[str, float]:
        """Returns the facts of the steps so far, by their names in a recording."""
        return {**self.device.facts(), **self._ranks.facts(), **self._prepared.facts()}
