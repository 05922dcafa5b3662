"""Buffers the steps of a watched training: holds them until it is certain that they are training, then sends them."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof.measure.devices import Device
from vitprof.measure.devices.events import WAIT_TO_BE_READ
from vitprof.measure.recorder import StepRecorder
from vitprof.measure.step_columns import Columns, StepMarks, derive, gather
from vitprof.recording.columns import LAG_FRAC, LEAST_LAG_S
from vitprof.watch.batches import Step
from vitprof.watch.fetch_times import FETCHED, WORK, TransformTimes
from vitprof.watch.loaders import Seen
from vitprof.watch.other_loaders import OtherBatch, OtherLoaders, with_others
from vitprof.watch.ranks import Forward, is_recorded, n_ranks
from vitprof.watch.replay import Replay
from vitprof.watch.send import Session, Unheard

if TYPE_CHECKING:
    from vitprof.watch.watcher import Watcher

WARMUP_STEPS = 5
DEVICE_COLUMNS = ("h2d_s", "compute_start_s", "compute_s", "gap_s", "exposed_wait_s", "h2d_start_s")
"""What is not known of a device that is not timed."""
TRANSFORMS_EVERY_S = 3.0
SIDE_FRAC = 0.03
"""The share of a step for which other streams may work while that of training is idle."""
SAMPLED_EVERY = 50
"""Of so many steps, one is timed by waiting for a device that has no timed events, and the one before it waits too."""

NOTED = (
    *FETCHED,
    "batch_values",
    "between_s",
    "collectives",
    "awaited_s",
    "forward_s",
    "compute_end",
    "loss",
)
"""The figures that are noted of a step: its batch, what its rank did (s), its end (s), its loss."""


class PlainBlock:
    """Finished steps, each up to the next request. One thread adds them, another may take them meanwhile."""

    def __init__(self, first: int, epoch: int, previous_end: float) -> None:
        """`first`: the number of the first step; `previous_end`: when the one before it ended."""
        self.first = self._next = first
        self._epoch, self._previous_end = epoch, previous_end
        self._figures = array("d")
        self.add = self._figures.extend
        self.closed = False

    def take(self) -> Columns | None:
        """Returns the marks of the steps since the last call, for `derive`; None if there are none."""
        n = len(self._figures) // len(NOTED)
        if not n:
            return None
        figures = np.array(self._figures[: n * len(NOTED)]).reshape(n, -1)
        del self._figures[: n * len(NOTED)]
        noted = dict(zip(NOTED, figures.T, strict=True))
        got, end, worker = noted["t_got"], noted["compute_end"], noted["worker"]
        number = np.arange(self._next, self._next + n, dtype=np.float64)
        previous_end = np.concatenate([[self._previous_end], end[:-1]])
        self._next, self._previous_end = self._next + n, float(end[-1])
        return noted | {
            "step": number,
            "epoch": np.full(n, float(self._epoch)),
            "warmup": np.zeros(n),
            "previous_end": previous_end,
            **dict.fromkeys(("copy_start", "copy_end", "compute_start"), got),
            "t_launched": end,
            "read_s": np.maximum(0.0, noted["dataset_s"] - noted["transform_s"]),
            "worker": np.where(worker < 0, math.nan, worker),
        }


class StepEnds:
    """Where the steps of an asynchronous device end: when the optimizer had stepped, unless the device still worked as
    the next batch was requested.
    """

    recorder: StepRecorder

    def __init__(self, device: Device, emit: Callable[[StepMarks], None], forward: Forward) -> None:
        self._device, self._emit, self._forward = device, emit, forward
        self.noted: deque[
            tuple[tuple[float, Any] | None, Sequence[OtherBatch], Sequence[Any], Sequence[Any]]
        ] = deque()
        """Of each step that the device has not passed yet: when its optimizer stepped, with the device's mark, its
        batches of other loaders, marks in other streams, those of its forward pass. NaN where no step came between two.
        """
        self.n_sided = 0
        """Steps before whose compute another stream worked while that of training was idle."""
        self._sides: list[Any] = []
        """Marks in other streams, whose work may reach into the gap before the next step."""
        self._left_s = math.nan

    def resume(self) -> None:
        """Makes the next step's gap count from here."""
        self.recorder.resume()
        self.noted.append(((math.nan, None), (), (), ()))

    def settle(self, marks: StepMarks) -> None:
        """Emits a step that the device has passed."""
        while (noted := self.noted.popleft())[0] is not None and math.isnan(noted[0][0]):
            self._left_s = math.nan
        stepped, others, sides, forward = noted
        self._forward.settle(marks, forward)
        if others:
            marks.made = with_others(marks.made, marks.t_got, others, self._device)
        if math.isnan(marks.outside_s) and self._left_s < marks.t_start:
            marks.outside_s = marks.t_start - self._left_s
        self._left_s = math.nan
        if stepped is not None:
            stepped_s, mark = stepped
            done_s = max(self._device.seconds(mark), stepped_s)
            self._device.release(mark)
            compute_s = marks.compute_end - marks.compute_start
            if marks.compute_end - marks.t_launched < max(LEAST_LAG_S, LAG_FRAC * compute_s):
                marks.t_launched, self._left_s = stepped_s, done_s
                marks.compute_end = self.recorder.previous_end = max(done_s, marks.compute_start)
        self._compare(sides, marks)
        self._emit(marks)

    def _compare(self, sides: Sequence[Any], marks: StepMarks) -> None:
        """Looks whether other streams worked, each from when its mark was set, in the gap before the step's compute."""
        self._sides += sides
        begin_s, start_s, end_s = marks.previous_end, marks.compute_start, marks.compute_end
        apart_s, later = 0.0, []
        for side in self._sides:
            until_s = self._device.seconds(side) if self._device.reached(side) else math.inf
            apart_s += max(0.0, min(until_s, start_s) - max(side.recorded_s, begin_s))
            if until_s > end_s:
                later.append(side)
            else:
                self._device.release(side)
        self._sides = later
        self.n_sided += apart_s > SIDE_FRAC * (end_s - begin_s) and not marks.warmup


class SampledSteps:
    """Times of a few steps on a device whose events have none: for these, the host waits for it at both ends."""

    def __init__(self, device: Device, facts: Callable[[dict[str, Any]], None]) -> None:
        self._device, self._facts = device, facts
        self._took_s: list[float] = []

    def end(self, marks: StepMarks) -> None:
        """Notes the end of a step, the host's work for it included, and sends the median so far as a fact."""
        place = marks.step % SAMPLED_EVERY
        if place < 2 and not marks.warmup:
            self._device.synchronize()
            if place == 1:
                self._took_s.append(perf_counter() - marks.t_got)
                self._facts(
                    {
                        "estimated_step_s": median(self._took_s),
                        "estimated_from_steps": len(self._took_s),
                    }
                )


class Steps:
    """The steps of one run so far."""

    def __init__(self, device: Device, watcher: Watcher) -> None:
        self._device = device
        self._buffer: deque[StepMarks | PlainBlock] = deque()
        """Steps that are not sent yet; the training thread appends to it without a lock."""
        watched = is_recorded()
        self.forward = Forward(device, shares=watched and n_ranks() > 1)
        keep = self._buffer.append if watched else lambda marks: None
        self._ends = StepEnds(device, keep, self.forward)
        self._recorder = self._ends.recorder = StepRecorder(
            device, keep if device.immediate else self._ends.settle
        )
        self._session = Session(watcher, self._send) if watched else Unheard()
        self._sending = threading.Lock()
        self.may_be_plain = device.immediate and device.timed and watched
        self.confirmed = False
        self.drop()
        self.replay: Replay | None = None
        """Decides which steps get kept batches, where headroom is measured."""
        self._replaying_since_s = math.nan
        self.source = ""
        """What last stood in for the train loader where the waits of a step may not be known; "" where nothing did."""
        self._n_unknown = 0
        self._sampled = (
            SampledSteps(device, self._session.facts)
            if device.torch_device.type in WAIT_TO_BE_READ
            else None
        )
        self.phase, self.facts = self._session.phase, self._session.facts
        self.resume = self._recorder.resume if device.immediate else self._ends.resume
        self.begin_again, self.pause, self.forget = (
            self._session.begin_again,
            self._session.pause,
            self._session.forget,
        )

    @property
    def warming_up(self) -> bool:
        """Returns whether the next step is part of the warm-up."""
        return self.n < WARMUP_STEPS

    def drop(self) -> None:
        """Begins anew, without what was recorded for a loader that turned out not to train."""
        self._buffer.clear()
        self.n = self.n_before_epoch = 0
        """The number of steps so far, without those on kept batches; and before this epoch."""
        self.others = OtherLoaders(self._device, self.add_transforms)
        self.transforms = TransformSums()

    def confirm(self, loader: dict[str, Any], *, headroom: bool) -> None:
        """Sends the steps so far, and from here on those of `loader` (its facts). Raises `OSError` without receiver."""
        if headroom:
            self.may_be_plain = False
            self.replay = Replay(
                int(loader.get("num_workers") or 0) * int(loader.get("prefetch_factor") or 2)
            )
        self._session.begin(self._device, loader)
        self.confirmed = True

    def add_transforms(self, transforms: Sequence[TransformTimes], samples: int) -> None:
        """Adds the times of each transform for a batch of so many samples, unless it is part of the warm-up."""
        if samples and not self.warming_up:
            self.transforms.add((transforms, samples))

    def step(self, step: Step, now_s: float, compute_end: Any, sides: Sequence[Any] = ()) -> None:
        """Records a step that ended at `now_s`; `compute_end` is the device's mark there, `sides` in other streams."""
        marks, others = step.marks, step.others
        marks.step, marks.warmup = self.n, self.warming_up
        if self.replay is not None:
            replaying = self.replay.replaying
            marks.step, unsettled = self.replay.step(self.n)
            marks.warmup |= unsettled
            if replaying is not self.replay.replaying:
                if replaying:
                    self.phase("headroom", self._replaying_since_s, now_s)
                self._replaying_since_s = now_s
        self.n += marks.step >= 0
        marks.t_launched, marks.compute_end = now_s, compute_end
        if not self._device.immediate:
            self._ends.noted.append((step.stepped, others, sides, step.forward))
        elif others:
            marks.made = with_others(marks.made, marks.t_got, others, self._device)
        self._recorder.step(marks)
        if self._sampled is not None:
            self._sampled.end(marks)

    def count_loaders(self, own: Seen | None, step: Step) -> None:
        """Counts a step that asked its `own` loader and, before or after it, others for a batch."""
        step.marks.samples += sum(other.samples for other in step.others)
        self.others.count(self.n, None if self.warming_up else own, step)
        if self.replay is not None:
            self.replay.give_up(
                "a step asks several loaders for a batch, and those of one alone are kept"
            )
        if self.confirmed:
            self.others.send(self._session.facts, at_end=False)

    def plain_block(self, epoch: int) -> PlainBlock:
        """Returns a block to add the steps of a plain loop to; each also has to be counted in `n`."""
        block = PlainBlock(self.n, epoch, self._recorder.previous_end)
        self._buffer.append(block)
        return block

    def close_block(self, block: PlainBlock, end_s: float) -> None:
        """Ends a block whose last step ended at `end_s`."""
        if self.n > block.first:
            self._recorder.previous_end = end_s
        block.closed = True

    def _send(self) -> None:
        steps = self._buffer
        with self._sending:
            while steps:
                if isinstance(block := steps[0], StepMarks):
                    self._send_columns(gather(self._noted()))
                    continue
                closed = block.closed  # read first: steps may be added until it is
                if (columns := block.take()) is not None:
                    self._send_columns(columns)
                if not closed:
                    break
                steps.popleft()
            own = self.forward
            counts = {"loader_waits_for_ranks": own.n_waited, "unknown_loader_waits": own.n_unknown}
            if any((counts := counts | {"side_stream_steps": self._ends.n_sided}).values()):
                self._session.facts(counts)
            self.transforms.send(self._session.facts, perf_counter())

    def _noted(self) -> Iterator[StepMarks]:
        while self._buffer and isinstance(self._buffer[0], StepMarks):
            yield self._buffer.popleft()  # type: ignore[misc]

    def _send_columns(self, marks: Columns) -> None:
        columns = derive(marks)
        if not self._device.timed:
            columns |= dict.fromkeys(DEVICE_COLUMNS, np.full(len(columns["step"]), np.nan))
        if self.source:
            unknown = np.isnan(columns["data_wait_s"])
            columns |= {name: np.where(unknown, np.nan, columns[name]) for name in DEVICE_COLUMNS}
            if n := int((unknown & (columns["warmup"] == 0)).sum()):
                self._n_unknown += n
                self._session.facts(
                    {"unknown_wait_steps": self._n_unknown, "fetched_by": self.source}
                )
        self._session.steps(columns if self.replay is None else self.replay.add(columns))

    def flush(self) -> None:
        self._recorder.resolve()
        self._send()
        self.transforms.send(self._session.facts)
        self.others.send(self._session.facts, at_end=True)
        if self.replay is not None:
            self.replay.send(self._session.facts)

    def close(self) -> None:
        try:
            if self.confirmed:
                self._send()
        finally:
            self.forward.close()
            self._session.close()


class TransformSums:
    """Seconds and calls of each transform so far, for any thread; Composes with the same transforms are summed."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[int, list[float]]] = {}
        self._batches: deque[tuple[Sequence[TransformTimes], int]] = deque()
        self.add = self._batches.append
        """Adds the times of the Composes for a batch, and its samples. Summing many at once is three times as fast."""
        self._samples = 0
        self._sent_s = -math.inf
        self._sending = threading.Lock()

    def send(self, facts: Callable[[dict[str, Any]], None], now_s: float = math.inf) -> None:
        """Sends the facts "transforms", name -> s a sample, calls, and "making", at most every `TRANSFORMS_EVERY_S`."""
        if now_s - self._sent_s < TRANSFORMS_EVERY_S:
            return
        with self._sending:
            while self._batches:
                transforms, samples = self._batches.popleft()
                self._samples += samples
                for names, calls, took_s in transforms:
                    calls_before, before = self._sums.get(names, (0, [0.0] * len(names)))
                    self._sums[names] = (
                        calls_before + calls,
                        [a + b for a, b in zip(before, took_s, strict=True)],
                    )
            used: Counter[str] = Counter()
            by_name: dict[str, Any] = {}
            making: dict[str, float] = {}
            for names, (calls, seconds) in self._sums.items():
                if names == WORK:
                    making = dict(zip(WORK, seconds, strict=True)) | {"batches": calls}
                    continue
                for name, total_s in zip(names, seconds, strict=True):
                    used[name] += 1
                    key = f"{name} ({used[name]})" if used[name] > 1 else name
                    by_name[key] = {"s_per_sample": total_s / self._samples, "calls": calls}
            if sent := {
                name: of for name, of in (("making", making), ("transforms", by_name)) if of
            }:
                self._sent_s = now_s
                facts(sent)
