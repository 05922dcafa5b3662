"""A simulated accelerator: it takes the time of a real one, and computes nothing.

Work is queued and done in order, as in CUDA. Because a step's time is known when it is launched,
the device needs no thread: the end of everything launched so far is arithmetic, a mark is the time
when the work before it will be done, and it is reached when the clock passes that time. So it uses
no CPU and holds no lock while it "computes", and its busy spans are known exactly.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from vitprof.config.accelerators import COUNTER_WINDOW_S, Accelerator
from vitprof.measure.devices import Clock, HostMemoryDevice

SPIN_S = 200e-6
"""The wait for a blocking copy sleeps until this long before its end, then spins, as CUDA's own
does.

A sleep ends 60 us late at best, milliseconds late on a busy machine, and copies of a batch take
some 10 us."""
FORWARD_SHARE = 1 / 3
"""Share of the forward pass in a training step: the backward pass takes twice as long (Kaplan et
al. 2020, 2.1)."""


class SimulatedStream:
    """A queue of work of a simulated device."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.free_s = -math.inf
        """When all work in it will be done, on the host's clock."""

    @contextmanager
    def use(self) -> Iterator[None]:
        before = self._device.current
        self._device.current = self
        try:
            yield
        finally:
            self._device.current = before

    def join(self, *tensors: Tensor) -> None:
        trains = self._device.current
        trains.free_s = max(trains.free_s, self.free_s)


class SimulatedDevice(HostMemoryDevice):
    """A simulated accelerator with a training stream, a copy engine and a bounded launch queue."""

    immediate = False
    simulated = True

    def __init__(
        self,
        name: str,
        accelerator: Accelerator,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.accelerator = accelerator
        self.current = SimulatedStream(self)
        self._clock = clock
        self._sleep = sleep
        self._copies_done_s = -math.inf
        self._queued: deque[float] = deque()
        """When each step that was queued will be done."""
        self._busy: deque[tuple[float, float]] = deque()
        """Start and end of each span of compute, as far back as `utilisation_pct` needs."""
        self.gauges = lambda: {"gpu_util_pct": self.utilisation_pct()}

    def launch(self, samples: int, *, train: bool = True) -> float:
        """Queues a step on `samples` samples; waits while the launch queue is full.

        Returns the mark where it begins. That mark is exact; one made before the launch may be a
        little early. A step without `train` is a forward pass.
        """
        queued = self._queued
        while queued and queued[0] <= self._clock():
            queued.popleft()
        if len(queued) >= self.accelerator.queue_steps:
            self.wait(queued.popleft())
        share = 1 if train else FORWARD_SHARE
        took = self.accelerator.compute_s(samples) * share
        launching = self.accelerator.launch_s * share
        start = self.mark()
        launched = self._clock() + launching
        # A step is many short kernels, launched one after another: the last waits for its launch or
        # for the others.
        end = self.current.free_s = max(start + took, launched)
        queued.append(end)
        self._note_busy(start, start + took)
        if launching:
            self.wait(launched)
        return start

    def hold(self, until: float) -> None:
        """Makes the step that was launched last end no sooner than `until`: in a collective, whose
        kernels wait.
        """
        self._note_busy(self.current.free_s, until)
        self.current.free_s = self._queued[-1] = max(self.current.free_s, until)

    def _note_busy(self, start: float, end: float) -> None:
        if self._busy:
            # Of work that overlaps earlier work, only the rest is new.
            start = max(start, self._busy[-1][1])
        if start < end:
            self._busy.append((start, end))
        past = self._clock() - 2 * COUNTER_WINDOW_S
        while self._busy and self._busy[0][1] < past:
            self._busy.popleft()

    def gate(self, seconds: float) -> None:
        self.current.free_s = self.mark() + seconds

    def mark(self) -> float:
        return max(self._clock(), self.current.free_s)

    def reached(self, mark: float) -> bool:
        return self._clock() >= mark

    def wait(self, mark: float) -> None:
        while (remaining_s := mark - self._clock()) > 0:
            self._sleep(remaining_s)

    def upload(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        took = self.accelerator.copy_s(tensor.nbytes, pinned=non_blocking)
        self.current.free_s = self._copies_done_s = max(self.mark(), self._copies_done_s) + took
        if not non_blocking:
            remaining_s = self._copies_done_s - self._clock()
            if remaining_s > SPIN_S:
                self._sleep(remaining_s - SPIN_S)
            while self._clock() < self._copies_done_s:
                # Lets other threads have Python's lock.
                self._sleep(0)
        return tensor

    def stream(self) -> SimulatedStream:
        return SimulatedStream(self)

    def keep(self, value: Tensor, step: int) -> Callable[[], float]:
        raise NotImplementedError("a simulated device computes no values")

    def synchronize(self) -> None:
        self.wait(max(self.current.free_s, self._copies_done_s))

    def utilisation_pct(self) -> float:
        """Returns the share of the last `COUNTER_WINDOW_S` in which the device computed, 0..100, as
        NVML reports it.
        """
        now = self._clock()
        since = now - COUNTER_WINDOW_S
        busy = sum(max(0.0, min(end, now) - max(start, since)) for start, end in list(self._busy))
        return 100 * busy / COUNTER_WINDOW_S

    def environment(self) -> dict[str, Any]:
        a = self.accelerator
        return {
            "device_name": f"simulated {a.name}: {a.times}",
            "simulated": True,
            "simulated_origin": a.origin,
        }
