"""Makes a data set in a process of its own, while the job that needs it still imports PyTorch.

That import takes one core for seconds, and a first run draws the digits for seconds: one after the
other, they were most of the time until its first step. A thread would not do, as an import holds
Python's lock. The job needs nothing of this process: it waits for the lock of `on_disk`, as for any
other process that makes the set, and then finds the set there, or makes it and says what is wrong.

`python -m vitprof.datasets.ahead NAME` makes one, until its standard input ends.
"""

import select
import subprocess
import sys
import threading

from vitprof import home
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import dataset_info
from vitprof.errors import VitprofError

QUICKLY_MADE = ("digits",)
"""Those that are worth it: of a set that takes minutes, the job itself shows the progress."""


def begin(name: str) -> None:
    """Starts the process for a data set that is not there yet; does nothing for any other.

    The process ends with the set, or soon after this one has ended, however that ends.
    """
    if name not in QUICKLY_MADE:
        return
    if (home.data_dir() / dataset_info(name).directory).exists():
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "vitprof.datasets.ahead", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # an ended process that nobody waits for stays in the list of the job's processes
    threading.Thread(target=process.wait, name="vitprof-made-ahead", daemon=True).start()


def _has_ended() -> bool:
    """Returns whether standard input has ended. Nothing is ever written to it."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def main() -> int:
    """Makes the data set that the command names. Returns the exit status: 1 if it could not be made."""
    try:
        on_disk.prepare(sys.argv[1], stop=_has_ended)
    except VitprofError:
        # the job meets the same, and says it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
