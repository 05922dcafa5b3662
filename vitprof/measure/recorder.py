"""Collects the marks of a training loop's steps, and resolves those of the device without making
the loop wait for it.

Columns are derived from them later, many steps at once, in the thread that sends (`step_columns`).
A probe at the end of the warm-up finds out whether the host launches slower than the device works.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median

from vitprof.measure.devices import Device, Mark, not_kept
from vitprof.measure.step_columns import StepMarks
from vitprof.recording.columns import LAG_FRAC, LEAST_LAG_S

NAN = math.nan
MAX_PENDING = 512
"""Most steps that may wait to be resolved.

CUDA lets the host run ahead by about 1,000 launches, a few dozen steps at most. If more pile up,
the loop waits for the device: that bounds memory and costs the device nothing."""
DEVICE_MARKS = (
    *("decoded", "copy_start", "compute_start", "copy_end", "prepared"),
    *("backward_start", "optimizer_start", "compute_end"),
)
"""Fields of `StepMarks`; each None where there is none."""


class StepRecorder:
    """Collector of the marks of steps; emits each step as soon as the device has passed it."""

    def __init__(
        self, device: Device, emit: Callable[[StepMarks], None], launches: LaunchProbe | None = None
    ) -> None:
        self._device = device
        self._launches = launches or LaunchProbe(device, 0)
        self._emit = emit
        self._pending: deque[tuple[Mark, StepMarks | None]] = deque()
        """The last mark of each step with the step; None with a mark of `resume`."""
        self.previous_end = NAN
        """When the device was done with the last step that was emitted, or passed the last mark of
        `resume`."""

    def resume(self) -> None:
        """Makes the next step's gap count from now: at the start, and after anything that is not a
        step.
        """
        mark = self._device.mark()
        if self._device.immediate:
            self.previous_end = mark
        else:
            self._pending.append((mark, None))

    def step(self, marks: StepMarks) -> None:
        """Notes a step whose device work has been launched.

        The recorder keeps `marks` and changes them.
        """
        # With a fast loader a step takes 12 us: the queue would add a tenth of that.
        if self._device.immediate:
            marks.kernel_s = marks.launch_idle_s = NAN
            self._finish(marks)
            return
        reached = marks.compute_end
        if marks.loss is not not_kept or reached is None:
            # After the loss's copy was queued: once this mark is passed, the loss is there, too.
            reached = self._device.mark()
        self._pending.append((reached, marks))
        self.resolve(at_most_pending=MAX_PENDING)

    def resolve(self, *, at_most_pending: int = 0) -> None:
        """Emits every step that the device has finished; waits only if more than `at_most_pending`
        are left.
        """
        pending = self._pending
        device = self._device
        while pending:
            reached, marks = pending[0]
            if not device.reached(reached):
                if len(pending) <= at_most_pending:
                    return
                device.synchronize()
            pending.popleft()
            if marks is None:
                self.previous_end = device.seconds(reached)
                device.release(reached)
            else:
                self._resolve(marks, reached)

    def _resolve(self, marks: StepMarks, reached: Mark) -> None:
        """Turns the device's marks of a step that it has passed into times, releases them, and
        emits the step.
        """
        passed = [getattr(marks, name) for name in DEVICE_MARKS]
        for name, mark in zip(DEVICE_MARKS, passed, strict=True):
            if mark is not None:
                setattr(marks, name, self._device.seconds(mark))
        marks.kernel_s = marks.launch_idle_s = NAN
        if marks.compute_end is not None:
            end = marks.compute_end
            compute_s = marks.compute_end - marks.compute_start
            if marks.warmup:
                host_s = marks.t_launched - marks.t_got
                lag_s = end - marks.t_launched
                marks.kernel_s = self._launches.passed(
                    marks.step, marks.samples, host_s, lag_s, compute_s
                )
            else:
                marks.launch_idle_s = self._launches.idle_s(marks.samples, compute_s)
        self._finish(marks)
        # A transfer that copies nothing uses one mark for all three; each is released once.
        distinct = {id(mark): mark for mark in [*passed, reached] if mark is not None}
        self._device.release(*distinct.values())

    def _finish(self, marks: StepMarks) -> None:
        marks.loss = marks.loss()
        marks.previous_end = self.previous_end
        self.previous_end = marks.compute_start if marks.compute_end is None else marks.compute_end
        self._emit(marks)


LOOKED_AT = 4
"""Last steps of the warm-up that answer whether the host set the pace; the ones before load kernels
and tune them.

Where the device has passed none of these yet, it is behind the host."""
LEAST_WARMUP = LOOKED_AT + 1
"""Warm-up steps needed to ask: no more than a job has by default."""
GATED_STEPS = 10
"""Steps whose launches are queued behind a gate."""
SETTLING_STEPS = 2
"""Steps after the gated ones that do not count either: the host is still ahead by the length of a
gate."""
LEAST_LEFT = 4 * (GATED_STEPS + SETTLING_STEPS)
"""Steps that must be left in the job to ask: three quarters of them then still count."""
GATE_MARGIN = 2.0
"""Length of a gate, as a multiple of the median launch time of a step.

The median, because the first steps of some jobs take seconds."""
MOST_GATE_S = 0.5
"""The longest gate (s)."""
NEVER = -1


class LaunchProbe:
    """The probe of one job: watches the end of its warm-up, and adds gated steps to it where the
    host set the pace.

    Marks around a step count the time between its kernels as compute. Where Python launches kernels
    slower than the device runs them, "compute" is mostly waiting for the next launch.

    Did the device finish each step as soon as its last kernel was launched? Then the host set the
    pace. The kernels' own time is then measured with all launches of a step queued behind a gate, a
    wait on the device that lasts longer than launching the step does.
    """

    def __init__(self, device: Device, warmup_steps: int) -> None:
        self._device = device
        self.steady_from = warmup_steps
        """Number of the first step after the warm-up."""
        can_ask = not device.immediate and warmup_steps >= LEAST_WARMUP
        self.asks_at = warmup_steps if can_ask else NEVER
        """The step before which `ask` is to be called; `NEVER` where it is not."""
        self.gates_left = 0
        """Steps still to be launched behind a gate, each by `gate`."""
        self._first_gated = math.inf
        self._gate_s = 0.0
        self._examined: deque[tuple[float, float, float]] = deque(maxlen=LOOKED_AT)
        """host_s, lag_s and compute_s of these steps, see `passed`."""
        self._kernels_s: list[float] = []
        self._samples = 0
        """Samples of a gated step: its kernels' time holds for steps of as many."""
        self.kernel_s = math.nan
        """Device time (s) of a step's kernels, at most: the median of the gated steps.

        NaN before them, and where the host did not set the pace."""
        self._paced: bool | None = None
        """Whether the host set the pace; None before `ask`."""

    def passed(
        self, step: int, samples: int, host_s: float, lag_s: float, compute_s: float
    ) -> float:
        """Notes a warm-up step that the device has passed.

        Returns its kernel time; NaN if it was not gated.

        `host_s` is what its launches took, `lag_s` the time from the last launch to the end of the
        device's work. A gated step whose compute began before its last launch does not count: it
        has more launches than a device queues, or waits for the device itself.
        """
        if not self._first_gated <= step < self._first_gated + GATED_STEPS:
            if step >= self.steady_from - LOOKED_AT:
                self._examined.append((host_s, lag_s, compute_s))
            return math.nan
        if lag_s < compute_s:
            return math.nan
        self._kernels_s.append(compute_s)
        self._samples = samples
        self.kernel_s = median(self._kernels_s)
        return compute_s

    def ask(self, steps_left: float) -> int:
        """Decides, before the first step that would count, whether to gate steps.

        Returns the number of steps added to the warm-up: 0 if the host did not set the pace, or if
        too few steps are left in the job (`steps_left` below `LEAST_LEFT`).
        """
        first = self.asks_at
        self.asks_at = NEVER
        if not self._examined:
            # The device is far behind: it works slower than the host launches.
            self._paced = False
            return 0
        hosts, lags, computes = (list(figures) for figures in zip(*self._examined, strict=True))
        self._paced = median(lags) < max(LEAST_LAG_S, LAG_FRAC * median(computes))
        if not self._paced or steps_left < LEAST_LEFT:
            return 0
        self._gate_s = min(GATE_MARGIN * median(hosts) + LEAST_LAG_S, MOST_GATE_S)
        self._first_gated = first
        self.gates_left = GATED_STEPS
        self.steady_from = first + GATED_STEPS + SETTLING_STEPS
        return GATED_STEPS + SETTLING_STEPS

    def gate(self) -> Mark:
        """Holds the device back until the next step is fully queued.

        Returns the mark behind the gate: the step's batch is ready there. The gate comes after the
        copy, since a loop may wait for that, and compute begins after the gate. The previous step
        has to be done first, or the device would fall behind by one gate each time. Waiting for it
        is fine: these steps do not count.
        """
        self.gates_left -= 1
        self._device.synchronize()
        self._device.gate(self._gate_s)
        return self._device.mark()

    def idle_s(self, samples: int, compute_s: float) -> float:
        """Returns the seconds that the device waited for launches inside a step; NaN where that is
        not known.
        """
        if not self._paced:
            if self._paced is None:
                return math.nan
            return 0.0
        # Nothing was gated, or this is a last batch that is smaller.
        if samples != self._samples:
            return math.nan
        return max(0.0, compute_s - self.kernel_s)
