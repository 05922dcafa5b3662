"""Times of a few steps on a device whose events have none: for these, the host waits for it at both ends."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Emit, Kind

SAMPLED = int(Kind.SAMPLED)
SAMPLED_EVERY = 50
"""Of so many steps, one is timed by waiting for the device, and the one before it waits too."""
WARMUP_STEPS = 5


class SampledSteps:
    """The steps of the thread that trains on such a device."""

    def __init__(self, device: Any) -> None:
        """`device`: as of `measure.devices`."""
        self._device = device
        self._thread = get_ident()
        self._n_ended = 0
        self._received_s = NAN

    def requested(self, emit: Emit) -> None:
        """Notes a request for a batch, which ends a step."""
        if get_ident() != self._thread:
            return
        self._n_ended += 1
        place = self._n_ended % SAMPLED_EVERY
        if self._n_ended <= WARMUP_STEPS or place > 1:
            return
        self._device.synchronize()
        if place == 1:
            now_s = perf_counter()
            emit((SAMPLED, now_s, self._thread, 0, now_s - self._received_s, NAN, NAN))

    def received(self, now_s: float) -> None:
        """Notes that the batch has come."""
        if get_ident() == self._thread:
            self._received_s = now_s


def sampled_steps(device: Any) -> SampledSteps | None:
    """Returns the steps on a `torch.device`, if these are to be sampled."""
    # they need PyTorch, which is half imported when this is
    from vitprof.measure.devices import open_device
    from vitprof.measure.devices.events import WAIT_TO_BE_READ

    if device.type not in WAIT_TO_BE_READ:
        return None
    return SampledSteps(open_device(str(device), perf_counter, in_use=True))
