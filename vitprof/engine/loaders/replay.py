"""The first batches of a job, kept and given again and again: training as if data were free.

Headroom is measured this way (DESIGN.md section 5): with the batches on the device nothing is left of loading, with the
batches in host memory only the transfer is. What the storage, its decoding and the loader cost is paid once, before
training begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import closing

from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Loader
from vitprof.errors import JobStopped

MOST_BATCHES = 8
"""More than any transfer has under way, so that a batch is not copied again while it is still being copied."""
MOST_BYTES = 256 * 2**20
"""Of images in the batches kept: little beside what a model takes, on the device too. One batch is always kept."""


class ReplayLoader:
    """Gives the same batches over and over, as many in an epoch as the loader they come from."""

    def __init__(self, batches: tuple[Batch, ...], n: int) -> None:
        self.kept = batches
        self._n = n

    def __len__(self) -> int:
        return self._n

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        yield from itertools.islice(itertools.cycle(self.kept), self._n)

    def close(self) -> None:
        return


def keep_batches(loader: Loader, place: Callable[[Tensor], Tensor], stop: Callable[[], bool]) -> ReplayLoader:
    """Fetches the first batches of `loader`'s epoch 0, closes it, and gives them again from then on.

    Kept are at most `MOST_BATCHES` and `MOST_BYTES` of images; a smaller batch at the epoch's end only if it is the
    first. `place` makes a copy of images or labels where they are to lie: a loader may use its own memory again.
    Raises `JobStopped` where `stop()` says so, and what `loader` raises.
    """
    kept: list[Batch] = []
    used = 0
    with closing(loader):  # its workers and threads end here: none of them takes CPU from what is measured
        n = len(loader)
        with closing(loader.epoch(0)) as batches:
            for batch in batches:
                if stop():
                    raise JobStopped("stopped while batches were fetched for replay")
                if not len(batch.labels):  # nothing in it could be read
                    continue
                if kept and len(batch.labels) < len(kept[0].labels):
                    break
                kept.append(Batch(place(batch.images), place(batch.labels)))
                used += batch.images.nbytes
                if len(kept) == MOST_BATCHES or used + batch.images.nbytes > MOST_BYTES:
                    break
    return ReplayLoader(tuple(kept), n)
