"""A map from the times of a device's clock to the host's. Needs no PyTorch."""


class HostClock:
    """A map from times on a device's clock to the host's monotonic clock, both in seconds, over a
    long run.

    The two drift apart; 100 us a second are allowed for. An event cannot have happened before the
    host recorded it, nor after the host saw that it had: where a mapped time breaks one of these
    bounds, the offset moves by as much as is needed. (Cristian's clock synchronisation, 1989.)

    The lower bound is tight where a device is starved: it runs an event the moment it is recorded.
    The upper one is not, as events are looked at later, and a clock that is ahead would turn waits
    for data into work. So some marks are set while the stream is known to be idle, and happen at
    once.
    """

    def __init__(self, began_s: float) -> None:
        """`began_s` is the host's time at 0 on the device's clock."""
        self._offset_s = began_s

    def to_host(self, device_s: float, recorded_s: float, seen_s: float) -> float:
        """Returns the host's time of an event at `device_s`, recorded at `recorded_s` and passed by
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
