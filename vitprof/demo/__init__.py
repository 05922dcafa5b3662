"""The demonstration: recorded runs in a home of their own, so that every page has something to show.

`runs.sqlite.gz` is a run store that `benchmarks/demonstration.py` recorded with real runs. The user's own store is not
touched: the demonstration's home is a folder in the user's home, and jobs that are started there stay in it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vitprof.errors import VitprofError
from vitprof.home import STORE_FILE, ensure_dir, home

RECORDED = Path(__file__).with_name("runs.sqlite.gz")
FOLDER = "demo"
MARK = "demonstration.sha256"
"""The file that marks a demonstration's home. It holds the SHA-256 hash of the recording in it."""
FIRST_SHOWN = 5
"""Id of the run that the Profile page shows until one is chosen."""
TOURNAMENT = 1
"""Id of the tournament in the recording."""


def is_demonstration() -> bool:
    """Returns whether this program's home is a demonstration's."""
    return (home() / MARK).is_file()


def make_home() -> tuple[Path, bool]:
    """Creates the demonstration's home in the user's home, unless it exists with the same recording.

    Returns its path, and whether it replaced the demonstration of another version and all runs made in it. Raises
    `VitprofError` if it cannot be written or a folder of its name holds something else.
    """
    mine = ensure_dir(home())
    with _alone(mine):  # of two that start together, the second finds what the first made
        return _made_home(mine / FOLDER)


def _made_home(place: Path) -> tuple[Path, bool]:
    recorded = RECORDED.read_bytes()
    mark = hashlib.sha256(recorded).hexdigest()
    before = place.exists()
    found = (place / MARK).read_text() if (place / MARK).is_file() else ""
    if found == mark:
        return place, False
    if before and not found:
        raise VitprofError(f"{place} is not a demonstration of vitprof's; move it away")
    # Written under a temporary name first: if the disk is full, nothing is left that looks like a store.
    made = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=place.parent))
    try:
        (made / STORE_FILE).write_bytes(gzip.decompress(recorded))
        (made / MARK).write_text(mark)
        if before:
            shutil.rmtree(place)
        made.rename(place)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise VitprofError(f"cannot write {place}: {error.strerror or error}") from error
    return place, before


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder, so that only one program at a time creates a demonstration in it."""
    import fcntl  # exists on Unix only, and this module can be imported elsewhere

    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
