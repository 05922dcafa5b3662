"""Maps a device's clock to the host's, and corrects for their drift over a long run."""

from __future__ import annotations

import math


class HostClock:
    """A map from times on a device's clock to the host's monotonic clock, both in seconds.

    The two clocks drift apart, by some 10 us a second at worst. Every event bounds the offset between them: it cannot
    have happened before the host recorded it, nor after the host saw that it had happened. If a mapped time breaks one
    of these bounds, the offset moves by just as much as is needed. A starved device runs an event the moment it is
    recorded, so the bound is tight where idle time matters. (The idea is that of Cristian's clock synchronisation,
    1989.)
    """

    def __init__(self) -> None:
        self._offset_s = math.nan

    def set(self, device_s: float, host_s: float) -> None:
        """Sets the offset: `device_s` and `host_s` are the same moment on the two clocks."""
        self._offset_s = host_s - device_s

    def to_host(self, device_s: float, recorded_s: float, seen_s: float) -> float:
        """Returns the time on the host's clock of an event at `device_s` on the device's.

        The host recorded the event at `recorded_s`, and saw at `seen_s` that it had happened.
        """
        at = device_s + self._offset_s
        if at < recorded_s:
            self._offset_s += recorded_s - at
            return recorded_s
        if at > seen_s:
            self._offset_s -= at - seen_s
            return seen_s
        return at
