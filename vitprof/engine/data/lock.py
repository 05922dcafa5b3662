"""A lock file: one process makes something while the others wait. It is free again however its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitprof.engine.data.idx import write_error, writing
from vitprof.errors import JobStopped

if TYPE_CHECKING:
    from vitprof.engine.data import OnProgress, Stop

POLL_S = 0.2


@contextmanager
def locked(path: Path, doing: str, progress: OnProgress, stop: Stop) -> Iterator[None]:
    """Holds the lock file at `path`, which is not removed. `doing` says in messages what the lock is held for.

    Raises `JobStopped` if `stop()` turned true while waiting, `DataError` if the file cannot be written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:
                raise write_error(path, error) from error
            if stop():
                raise JobStopped(f"stopped while waiting for another process that is {doing}")
            progress(0.0, f"another process is {doing}")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)
