"""Forks of the process that runs the tests."""

import os
import traceback
from collections.abc import Callable


def fork_doing(work: Callable[[], int | None]) -> int:
    """Starts a fork of this process that does `work` and ends; returns its process ID.

    Its exit status is what `work` returns, 0 for None, and 255 where it raises. It never returns into the test:
    there it would do a second time what its parent does, as one that kills the process whose ID `fork` returned.
    In the fork that ID is 0, and a signal to 0 goes to all processes of its group.
    """
    child = os.fork()
    if child:
        return child
    status = 255
    try:
        status = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def exit_status_of(child: int) -> int:
    """Waits for a child of this process to end; returns its exit status, or -N where signal N ended it."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
