"""Keeps the first batches of a job and replays them: training as if data were free.

Headroom is measured this way (docs/figures.md): with the batches on the device, loading costs nothing; with the
batches in host memory, only the transfer is left. Reading, decoding and the loader cost time only once, before training
begins.
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
"""Most batches kept: more than any transfer has in flight, so that none is copied again while still being copied."""
MOST_BYTES = 256 * 2**20
"""Most bytes of images kept: little compared with a model's memory, on the device too. One batch is always kept."""


class ReplayLoader:
    """A loader that gives the same batches over and over, `n` in an epoch."""

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
    """Fetches the first batches of `loader`'s epoch 0 and closes it. Returns a loader that replays them.

    At most `MOST_BATCHES` and `MOST_BYTES` of images are kept; a smaller batch at the epoch's end only if it is the
    first. `place` copies images or labels to where they are kept: a loader may reuse its own memory. Raises
    `JobStopped` if `stop()` turns true, and what `loader` raises.
    """
    kept: list[Batch] = []
    used = 0
    with closing(loader):  # its workers and threads end here and take no CPU from what is measured
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
