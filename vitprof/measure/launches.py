"""Finds out whether the host launches slower than the device works, and how long the device's work alone takes.

Marks around a step count the time between its kernels as compute: where Python launches kernels slower than the
device runs them, "compute" is mostly waiting for the next launch. The probe asks two questions, once, at the end of
the warm-up. First: did the device finish each step as soon as its last kernel was launched? Then
the host set the pace. Second: how long do the kernels take when all launches of a step are already queued? For that
they are queued behind a gate, a wait on the device that lasts longer than launching the step does.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from vitprof.measure.devices import Device, Mark

LOOKED_AT = 4
"""Last steps of the warm-up that answer the first question; the ones before load kernels and tune them."""
LEAST_WARMUP = LOOKED_AT + 1
"""Warm-up steps needed to ask: no more than a job has by default."""
GATED_STEPS = 10
SETTLING_STEPS = 2
"""Steps after the gated ones that do not count either: the host is still ahead by the length of a gate."""
LEAST_LEFT = 4 * (GATED_STEPS + SETTLING_STEPS)
"""Steps that must be left in the job to ask: three quarters of them then still count."""
LEAST_LAG_S = 100e-6
LAG_FRAC = 0.05
"""The host set the pace if less than 100 us, or 5% of compute, passed from a step's last launch to its end."""
GATE_MARGIN = 2.0
"""Length of a gate, as a multiple of the median launch time of a step. The median, because the first steps of some
jobs take seconds."""
MOST_GATE_S = 0.5
NEVER = -1


class LaunchProbe:
    """The probe of one job: watches the end of its warm-up, and adds gated steps to it where the host set the pace."""

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
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=LOOKED_AT)
        self._kernels_s: list[float] = []
        self._samples = 0
        self.kernel_s = math.nan
        """Device time of a step's kernels alone, in seconds: the median of the gated steps. NaN before them, and where
        the host did not set the pace."""
        self._paced: bool | None = None

    def passed(self, step: int, samples: int, host_s: float, lag_s: float, compute_s: float) -> float:
        """Notes a warm-up step that the device has passed. Returns its kernel time; NaN if it was not gated.

        All times are in seconds: `host_s` is what its launches took, `lag_s` the time from the last launch to the end
        of the device's work, `compute_s` the device time of the step.
        """
        if not self._first_gated <= step < self._first_gated + GATED_STEPS:
            self._seen.append((host_s, lag_s, compute_s))
            return math.nan
        self._kernels_s.append(compute_s)
        self._samples = samples
        self.kernel_s = median(self._kernels_s)
        return compute_s

    def ask(self, steps_left: float) -> int:
        """Decides, before the first step that would count, whether to gate steps.

        Returns the number of steps added to the warm-up: 0 if the host did not set the pace, or if too few steps are
        left in the job (`steps_left` below `LEAST_LEFT`).
        """
        first, self.asks_at = self.asks_at, NEVER
        if not self._seen:  # the device is far behind: it works slower than the host launches
            self._paced = False
            return 0
        hosts, lags, computes = (list(figures) for figures in zip(*self._seen, strict=True))
        self._paced = median(lags) < max(LEAST_LAG_S, LAG_FRAC * median(computes))
        if not self._paced or steps_left < LEAST_LEFT:
            return 0
        self._gate_s = min(GATE_MARGIN * median(hosts) + LEAST_LAG_S, MOST_GATE_S)
        self._first_gated = first
        self.gates_left = GATED_STEPS
        self.steady_from = first + GATED_STEPS + SETTLING_STEPS
        return GATED_STEPS + SETTLING_STEPS

    def gate(self) -> Mark:
        """Holds the device back until the next step is fully queued. Returns the mark behind the
        gate: the step's batch is ready there.

        The gate comes after the copy, since a loop may wait for that, and compute begins after the gate. The previous
        step has to be done first, or the device would fall behind by one gate each time. Waiting for it is fine: these
        steps do not count.
        """
        self.gates_left -= 1
        self._device.synchronize()
        self._device.gate(self._gate_s)
        return self._device.mark()

    def idle_s(self, samples: int, compute_s: float) -> float:
        """Returns the seconds that the device waited for launches inside a step; NaN where that is not known."""
        if not self._paced:
            return 0.0 if self._paced is False else math.nan
        if samples != self._samples:  # nothing was gated, or a last batch that is smaller
            return math.nan
        return max(0.0, compute_s - self.kernel_s)
