"""Finds out whether the host launches slower than the device works, and how long the device's work alone takes.

Marks around a step count the time between its kernels as compute: where Python launches slower than the device runs
what it is given, "compute" is mostly waiting for the next launch. Two questions are asked, once, at the end of the
warm-up (DESIGN.md section 5). Did the device end its steps as soon as they were launched? Then the host paced it. And
how long do the kernels take when all launches of a step lie ready: behind a gate, a wait on the device that is longer
than launching takes.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from vitprof.engine.devices import Device
from vitprof.engine.transfer import Moved

LOOKED_AT = 4
"""Last steps of the warm-up that the first answer rests on; the ones before load kernels and tune them."""
LEAST_WARMUP = LOOKED_AT + 1
"""Warm-up steps that are needed to ask: no more than a job has unless told otherwise."""
GATED_STEPS = 10
SETTLING_STEPS = 2
"""Steps behind them that do not count either: the host is ahead by the length of a gate."""
LEAST_LEFT = 4 * (GATED_STEPS + SETTLING_STEPS)
"""Steps that must be left: three quarters of them count."""
LEAST_LAG_S = 100e-6
LAG_FRAC = 0.05
"""The host paced a step if less than 100 us, or 5% of its compute, passed from its last launch to its end."""
GATE_MARGIN = 2.0
"""Length of a gate, in times that launching a step takes in the median: the first steps of some jobs take seconds."""
MOST_GATE_S = 0.5
NEVER = -1


class LaunchProbe:
    """Watches the end of a job's warm-up, and makes it longer by some gated steps where the host paced the device."""

    def __init__(self, device: Device, warmup_steps: int) -> None:
        self._device = device
        self.steady_from = warmup_steps
        """First step that counts."""
        can_ask = not device.immediate and warmup_steps >= LEAST_WARMUP
        self.asks_at = warmup_steps if can_ask else NEVER
        """The step before which it wants to be asked (`ask`)."""
        self.gates_left = 0
        """Steps that are still to be launched behind a gate (`gate`)."""
        self._first_gated = math.inf
        self._gate_s = 0.0
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=LOOKED_AT)
        self._kernels_s: list[float] = []
        self._samples = 0
        self.kernel_s = math.nan
        """Device time of a step's kernels alone: median of the gated steps. NaN before, or where the host did not pace
        the device."""
        self._paced: bool | None = None

    def passed(self, step: int, samples: int, host_s: float, lag_s: float, compute_s: float) -> float:
        """Takes note of a step of the warm-up that the device has passed. Returns its `kernel_s`.

        `host_s` is what its launches took, `lag_s` the time from the last one to the end of the device's work.
        """
        if not self._first_gated <= step < self._first_gated + GATED_STEPS:
            self._seen.append((host_s, lag_s, compute_s))
            return math.nan
        self._kernels_s.append(compute_s)
        self._samples = samples
        self.kernel_s = median(self._kernels_s)
        return compute_s

    def ask(self, steps_left: float) -> int:
        """Decides, before the first step that would count; returns by how many steps the warm-up is longer.

        It stays as it is in a job so short that those steps would be missed (`steps_left`).
        """
        first, self.asks_at = self.asks_at, NEVER
        if not self._seen:  # the device is far behind: it works slower than it is given work
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

    def gate(self, batch: Moved) -> Moved:
        """Holds the device back, so that the step that is launched next lies ready when it goes on.

        Behind the copy, which a loop may wait for; compute begins behind the gate. The step before must be done: else
        the device would fall behind by a gate each time. These steps do not count, so waiting for it is fine.
        """
        self.gates_left -= 1
        self._device.synchronize()
        self._device.gate(self._gate_s)
        return batch._replace(ready=self._device.mark())

    def idle_s(self, samples: int, compute_s: float) -> float:
        """Returns how long the device waited for launches inside a step; NaN where that is not known."""
        if not self._paced:
            return 0.0 if self._paced is False else math.nan
        if samples != self._samples:  # nothing was gated, or a last batch that is smaller
            return math.nan
        return max(0.0, compute_s - self.kernel_s)
