"""From a device's own clock to the host's, kept true over a long run."""

from __future__ import annotations

import math


class HostClock:
    """Maps times on a device's clock to the host's monotonic one, in seconds.

    The two clocks drift apart, by some 10 us a second at worst. Every event tells a little about how far: it cannot
    have happened before the host recorded it, nor after the host saw that it had. Where a mapped time breaks one of
    these bounds, the offset moves by as much as it must. A starved device runs an event the moment it is recorded, so
    the bound is tight where idle time matters. (The idea is that of Cristian's clock synchronisation, 1989.)
    """

    def __init__(self) -> None:
        self._offset_s = math.nan

    def set(self, device_s: float, host_s: float) -> None:
        """These two moments are the same."""
        self._offset_s = host_s - device_s

    def to_host(self, device_s: float, recorded_s: float, seen_s: float) -> float:
        """Returns when `device_s` was on the host's clock; the host recorded the event at `recorded_s`, saw it at
        `seen_s`.
        """
        at = device_s + self._offset_s
        if at < recorded_s:
            self._offset_s += recorded_s - at
            return recorded_s
        if at > seen_s:
            self._offset_s -= at - seen_s
            return seen_s
        return at
