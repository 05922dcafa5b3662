"""What is timed goes before other tests and programs: its bounds then hold on a busy machine, too."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def go_first() -> None:
    """Gives this thread, and what it starts from now on, the core before all others, where it may: root may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def waited_for_core_s() -> float:
    """Returns how long (s) this process's first thread could run and had no core; 0 where the kernel does not count."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


@contextlib.contextmanager
def first() -> Iterator[None]:
    """Does so for a while; `measured(before_others=True)` asks for it."""
    go_first()
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
