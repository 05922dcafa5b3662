"""An alarm for work that may turn out to have no end."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def cpu_alarm(limit_s: float) -> Iterator[None]:
    """Fails what takes more CPU time, of all threads of this process: a busy machine does not count."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {limit_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
