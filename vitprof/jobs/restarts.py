"""A training that its launcher started again: which process is of which start, and one series of the steps
of all.

torchrun, and what is built on it, ends all processes of a training where one fails, and starts new ones
(`--max-restarts`), which mostly go on from a checkpoint. To a user that is one training. The processes
of each start count their steps from 0.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitprof.formats import count
from vitprof.measure.step_columns import Columns
from vitprof.recording.rank_facts import RestartFacts
from vitprof.store.nodes import meeting_of

COUNTS = (
    "unknown_wait_steps",
    "unclear_loaders_steps",
    "side_stream_steps",
    "loader_waits_for_ranks",
    "unknown_loader_waits",
)
"""Facts that count steps or batches: those of all starts are added up."""


@dataclass(frozen=True, slots=True)
class Start:
    """The processes of a training that were started together, as one of them describes it."""

    launcher: str
    """Of the program that starts them again where one fails; "" without one."""
    restarts: int
    """How often it had done so before."""
    meeting: str
    """An id in the store by which the processes met; "" where there is none."""

    @classmethod
    def of(cls, process: Mapping[str, Any]) -> Start:
        """Returns the start of a process, by what it says of itself as it connects."""
        return cls(
            str(process.get("launcher") or ""),
            int(process.get("restarts") or 0),
            meeting_of(str(process.get("job") or "")),
        )

    def is_same(self, other: Start) -> bool:
        """Returns whether nothing shows that these are two starts."""
        return (self.launcher, self.restarts) == (
            other.launcher,
            other.restarts,
        ) and not self._met_elsewhere(other)

    def follows(self, other: Start) -> bool:
        """Returns whether the launcher started this after the `other` one. Where a node joins or leaves
        it does not count that."""
        if not self.launcher or self.launcher != other.launcher:
            return False
        if self.restarts == other.restarts:
            return self._met_elsewhere(other)
        return self.restarts > other.restarts

    def _met_elsewhere(self, other: Start) -> bool:
        return bool(self.meeting and other.meeting) and self.meeting != other.meeting


class StepsOfStarts:
    """The steps of all starts of a training, numbered as one series, for all ranks alike. Several threads
    may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = 0
        """The number of the start that goes on."""
        self._first_step = 0.0
        self._first_epoch = 0.0
        self._next_step = 0.0
        self._next_epoch = 0.0
        self._counts: Counter[str] = Counter()
        """`COUNTS` of this start."""
        self._counts_before: Counter[str] = Counter()
        """Those of the starts before."""
        self.restarted_at: list[RestartFacts] = []
        """Each start but the first."""

    def begin(self, meeting: str) -> None:
        """Begins the next start: its steps follow those that any rank has made."""
        with self._lock:
            self._start += 1
            self._first_step = self._next_step
            self._first_epoch = self._next_epoch
            self._counts_before += self._counts
            self._counts.clear()
            self.restarted_at.append({"step": int(self._first_step), "meeting": meeting})

    def numbered(self, steps: Columns, start: int) -> Columns | None:
        """Returns the steps of a start with their numbers in the series; None for what comes of an earlier
        one, whose numbers are taken."""
        with self._lock:
            if start != self._start:
                return None
            if start:
                steps = {
                    **steps,
                    "step": steps["step"] + self._first_step,
                    "epoch": steps["epoch"] + self._first_epoch,
                }
            if len(steps["step"]):
                self._next_step = max(self._next_step, float(steps["step"][-1]) + 1)
                self._next_epoch = max(self._next_epoch, float(steps["epoch"][-1]) + 1)
            return steps

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts of the start that goes on as those of the run."""
        with self._lock:
            counts = {name: facts[name] for name in COUNTS if name in facts}
            self._counts.update({name: n - self._counts[name] for name, n in counts.items()})
            return {**facts, **{name: n + self._counts_before[name] for name, n in counts.items()}}


def restarts_in_words(n: int, restarted_at: Sequence[RestartFacts]) -> str:
    """Returns a line on a training that was started again `n` times, with the first step of each start
    that trained; "" for none."""
    if not n:
        return ""
    line = f"its launcher started the training again {count(n, 'time')}"
    if not restarted_at:
        return f"{line} before any step was seen"
    numbers = [f"{start['step']:,}" for start in restarted_at]
    steps = f"step {numbers[0]} is the first one"
    if len(numbers) > 1:
        steps = f"steps {', '.join(numbers[:-1])} and {numbers[-1]} are the first ones"
    return f"{line}: {steps} of a new start, and the time between the starts is in no figure"
