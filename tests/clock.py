"""A clock for tests."""


class Clock:
    """A clock that moves when the host works or sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self.now, self.slept = now, 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds or 1e-6  # to ask and to hand over takes a moment, too
        self.slept += seconds
