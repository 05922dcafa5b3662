"""Records the steps of a watched training: holds them until it is certain that they are training, then sends them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from vitprof.measure.devices import Device
from vitprof.measure.recorder import StepMarks, StepRecorder
from vitprof.watch.fetch_times import TransformTimes
from vitprof.watch.guard import Guard
from vitprof.watch.on_import import is_watched_rank
from vitprof.watch.plain_block import PlainBlock
from vitprof.watch.replay import Replay
from vitprof.watch.session import Session, Unheard, Wanted
from vitprof.watch.transforms import TransformSums

WARMUP_STEPS = 5


class Recording:
    """The steps of one run so far."""

    def __init__(self, device: Device, guard: Guard, forking: threading.RLock, wanted: Wanted | None) -> None:
        self._device = device
        self._recorder = StepRecorder(device, self._hand_on)
        self.rows_later = device.immediate and is_watched_rank()
        """Whether the sending thread makes the rows, many at once.

        That takes a third of the time of making each between two steps, when the training has filled the CPU's caches.
        """
        self._done: deque[StepMarks | PlainBlock] = deque()
        """Steps that no row was made of yet; the training thread appends to it without a lock."""
        self._making_rows = threading.Lock()
        self._session = Session(guard, forking, wanted, self._make_rows) if is_watched_rank() else Unheard()
        self.confirmed = False
        """Whether the recorded steps are known to be training."""
        self._held: list[tuple[float, ...]] = []
        """Rows until then."""
        self.n = 0
        """The number of steps so far, without those on kept batches."""
        self._transforms = TransformSums()
        self.replay: Replay | None = None
        """Decides which steps get kept batches, where headroom is measured."""
        self._replaying_since_s = math.nan

    @property
    def warming_up(self) -> bool:
        """Returns whether the next step is part of the warm-up."""
        return self.n < WARMUP_STEPS

    def drop(self) -> None:
        """Drops what was recorded for a loader that turned out not to train."""
        self._done.clear()
        self._held.clear()
        self.n = 0
        self._transforms = TransformSums()

    def confirm(self, loader: dict[str, Any], *, headroom: bool) -> None:
        """Sends the held rows, and from here on every step of `loader` (see `session.loader_facts`).

        `headroom`: serve kept batches in some steps. Raises `OSError` where no program can record the run.
        """
        self._make_rows()
        if headroom:
            self.rows_later = False
            self.replay = Replay(int(loader.get("num_workers") or 0) * int(loader.get("prefetch_factor") or 2))
        self._session.begin(self._device, loader)
        self.confirmed = True
        for row in self._held:
            self._session.step(row)
        self._held.clear()

    @property
    def add_transforms(self) -> Callable[[tuple[TransformTimes, ...], int], None]:
        """Returns a function that adds the times of each transform for a batch of so many samples."""
        return self._transforms.add

    def transforms(self, times: tuple[TransformTimes, ...], samples: int, now_s: float) -> None:
        """Adds the times of each transform for a batch of `samples`, unless it is part of the warm-up."""
        if self.warming_up:
            return
        self._transforms.add(times, samples)
        if self.confirmed:
            self._transforms.tell(self._session.facts, now_s)

    def step(self, marks: StepMarks, now_s: float, compute_end: Any) -> None:
        """Records a step that ended at `now_s`; `compute_end` is the device's mark there."""
        marks.step, marks.warmup = self.n, self.warming_up
        if self.replay is not None:
            replaying = self.replay.replaying
            marks.step, left_out = self.replay.step(self.n)
            marks.warmup |= left_out
            if replaying is not self.replay.replaying:
                if replaying:
                    self.phase("headroom", self._replaying_since_s, now_s)
                self._replaying_since_s = now_s
        self.n += marks.step >= 0
        marks.t_launched, marks.compute_end = now_s, compute_end
        if self.rows_later:
            self._done.append(marks)
        else:
            self._recorder.step(marks)

    def plain_block(self, epoch: int) -> PlainBlock:
        """Returns a block to add the steps of a plain loop to; each also has to be counted in `n`."""
        block = PlainBlock(self.n, epoch)
        self._done.append(block)
        return block

    def _make_rows(self) -> None:
        done = self._done
        with self._making_rows:
            while done:
                first = done[0]
                if isinstance(first, StepMarks):
                    self._recorder.step(first)
                else:
                    closed = first.closed  # asked first: steps may be added until it is
                    if (columns := first.take()) is not None:
                        self._session.steps(self._recorder.plain_rows(columns))
                        self._transforms.tell(self._session.facts, float(columns.t_end[-1]))
                    if not closed:
                        return
                done.popleft()

    def resume(self) -> None:
        """Makes the next step's gap count from here."""
        self._make_rows()
        self._recorder.resume()

    def phase(self, name: str, since_s: float, until_s: float) -> None:
        """Records a span of time that belongs to no step."""
        self._session.phase(name, since_s, until_s)

    def notice(self, line: str) -> None:
        """Tells the user something about these figures."""
        self._session.notice(line)

    def tell(self) -> None:
        """Sends the steps that the device has finished, and the facts of the run."""
        self._make_rows()
        self._recorder.resolve()
        self._transforms.tell(self._session.facts)
        if self.replay is not None:
            self.replay.tell(self._session.facts)

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now, with this status and error."""
        self._session.pause(status, error)

    def begin_again(self) -> None:
        """Continues the run after `pause`."""
        self._session.begin_again()

    def forget(self) -> None:
        """Drops the session in a forked process."""
        self._session.forget()

    def close(self) -> None:
        """Sends what is left and ends the session."""
        try:
            if self.confirmed:
                self._make_rows()
        finally:
            self._session.close()

    def _hand_on(self, row: tuple[float, ...]) -> None:
        if self.replay is not None and self.replay.add(row):
            return
        (self._session.step if self.confirmed else self._held.append)(row)
