"""Locations: where a storage's files are while a job reads them, and how fast they can be read there.

`open_location` brings a prepared storage to the place that a config asks for and removes everything it made when the
job ends. Importing this module does not import torch; the dashboard asks `vitprof.telemetry.tmpfs` for a RAM disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitprof import home
from vitprof.config import RunConfig
from vitprof.config.drives import slow_drive
from vitprof.engine.data.contract import OnProgress, Stop
from vitprof.engine.locations.copying import Copied, copy_tree, is_for_training, tree_bytes
from vitprof.engine.locations.scratch import remove_leftovers, scratch_directory
from vitprof.engine.locations.throttle import TokenBucket, describe
from vitprof.errors import DataError
from vitprof.telemetry.tmpfs import find_tmpfs, own_directory, ram_disk

if TYPE_CHECKING:
    from vitprof.engine.storage.contract import Place

NOTHING_COPIED = Copied(0, 0.0)


@dataclass(frozen=True)
class Located:
    """A storage's files, where the job reads them."""

    place: Place
    """Where to open the storage."""
    note: str
    """A line about it for the user: "throttled to 30 MB/s and 207 ms for each file". Empty on the local disk."""
    copied: Copied = NOTHING_COPIED
    """What was copied before training."""
    unmeasured: Place | None = None
    """Where evaluation reads, if elsewhere: the same files at the speed of their real drive."""

    @property
    def stage_s(self) -> float:
        """Returns the seconds that the copy took; 0 if nothing was copied."""
        return self.copied.seconds

    @property
    def stage_bytes(self) -> int:
        """Returns the bytes copied."""
        return self.copied.n_bytes

    def open(self, opener: Callable[[Place], Any], *, measured: bool = True) -> Any:
        """Returns `opener(place)`. Raises what it raises.

        With `measured` False it is for evaluation, and reads at the real drive's speed: a slow drive would only make
        evaluation take longer.
        """
        return opener(self.place if measured or self.unmeasured is None else self.unmeasured)

    def let_go(self) -> None:
        """Ends all waits for a slow drive, in all processes: what workers still read ahead is no longer needed."""
        if self.place.throttle is not None:
            self.place.throttle.close()


def remove_copies() -> None:
    """Removes the copies of jobs that are gone, from RAM disk and local disk. Those of running jobs are locked."""
    remove_leftovers(home.home() / "locations")
    if tmpfs := find_tmpfs():  # a dead job's copy still takes RAM
        with suppress(DataError):
            remove_leftovers(own_directory(tmpfs))


@contextmanager
def open_location(
    config: RunConfig,
    directory: Path,
    *,
    progress: OnProgress,
    stop: Stop,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Located]:
    """Provides the files of `directory` at the location that the resolved `config` names, for the block.

    Everything made for it (copies, the state of a throttled drive) is removed at the end, also after an exception;
    what a killed job left is removed at the next start. Close storages and loaders before the block ends. Raises
    `DataError` (RAM disk missing or too small, disk full, a file that cannot be read) and `JobStopped`.
    """
    from vitprof.engine.storage.contract import Place  # here, since it imports torch

    remove_copies()
    on_disk = home.home() / "locations"
    if config.location in (None, "disk"):
        yield Located(Place(directory), "")
    elif config.location == "ram-disk":
        tmpfs = ram_disk(tree_bytes(directory))
        with scratch_directory(own_directory(tmpfs), directory.name) as scratch:
            copied = copy_tree(directory, scratch / "copy", throttle=None, progress=progress, stop=stop, clock=clock)
            yield Located(Place(scratch / "copy"), f"copied to the RAM disk {tmpfs.path}", copied)
    else:
        with scratch_directory(on_disk, directory.name) as scratch:
            drive = slow_drive(config)
            bucket = TokenBucket(scratch / "drive", drive, clock=clock)
            slow, local, real = Place(directory, bucket), Place(scratch / "copy"), Place(directory)
            try:
                if config.location == "slow-drive":
                    yield Located(slow, describe(drive), unmeasured=real)
                else:
                    copied = copy_tree(
                        directory,
                        local.root,
                        throttle=bucket,
                        progress=progress,
                        stop=stop,
                        wanted=is_for_training,
                        clock=clock,
                    )
                    yield Located(local, f"copied first from a drive {describe(drive)}", copied, unmeasured=real)
            finally:
                bucket.close()
