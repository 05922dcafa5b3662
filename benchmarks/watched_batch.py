"""The time that watching adds to making a batch in a worker: fetch, collate, and pickling for the queue."""

import itertools
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from benchmarks.measuring import no_collections
from benchmarks.overhead import over_rounds
from vitprof.analysis.arrays import Interval
from vitprof.watch.fetch_times import CollateTimer, timed_compose, timed_fetch

ROUNDS, BATCHES = 60, 400
AT_MOST_US = 1.3
"""Most CPU time that watching should add to a batch in a worker."""


class _Fetcher:
    """A fetcher like PyTorch's, with a dataset and a collate function."""

    def __init__(self, sample: Callable[[int], Any], collate: Callable[[list[Any]], Any]) -> None:
        self.sample, self.collate = sample, collate
        self._vitprof_worker = 0
        self._vitprof_clock = None

    def fetch(self, index: list[int]) -> Any:
        return self.collate([self.sample(i) for i in index])


class _Compose:
    """A Compose like torchvision's."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        for t in self.transforms:
            img = t(img)
        return img


class _TimedCompose(_Compose):
    __call__ = timed_compose(_Compose.__call__)


def _total(samples: list[int]) -> int:
    return len(samples)


def batch_maker(*, watched: bool, transforms: int, batch_size: int) -> Callable[[], None]:
    """Returns a function that makes a batch and pickles it, as a worker does. The samples cost almost nothing, so that
    what watching adds shows.

    Each sample goes through a Compose of `transforms` transforms, or through none if that is 0.
    """
    compose = (_TimedCompose if watched else _Compose)([int] * transforms) if transforms else int
    fetcher = _Fetcher(compose, CollateTimer(_total) if watched else _total)
    fetch: Callable[[Any, Any], Any] = _Fetcher.fetch
    if watched:
        fetch = timed_fetch(fetch)
    index, dumps = list(range(batch_size)), ForkingPickler.dumps

    def make() -> None:
        dumps((0, fetch(fetcher, index)))

    return make


def added_us(
    *, transforms: int, batch_size: int, rounds: int = ROUNDS, batches: int = BATCHES
) -> Interval:
    """Returns the microseconds of CPU that watching adds to a batch: the median over rounds, with its interval. Both
    sides run in turns in each round.
    """
    sides = [
        batch_maker(watched=watched, transforms=transforms, batch_size=batch_size)
        for watched in (False, True)
    ]
    more = []
    with no_collections():
        for number in range(rounds):
            spent = [0.0, 0.0]
            for side in (0, 1) if number % 2 else (1, 0):
                make = sides[side]
                began = time.thread_time()
                for _ in itertools.repeat(None, batches):
                    make()
                spent[side] = time.thread_time() - began
            more.append((spent[1] - spent[0]) / batches * 1e6)
    return over_rounds(np.array(more))


def print_batches() -> None:
    """Prints the time added to a batch, and to each sample that goes through a Compose."""
    batch = added_us(transforms=0, batch_size=8)
    small, large = (added_us(transforms=1, batch_size=n).value for n in (8, 64))
    more = added_us(transforms=4, batch_size=64).value
    sample, transform = (large - small) / 56, (more - large) / 64 / 3
    met = "met" if batch.value <= AT_MOST_US else "MISSED"
    interval = f"95%: {batch.low:.2f} to {batch.high:.2f}"
    print(
        f"In a worker: {batch.value:.2f} us of CPU for each batch ({interval}; <= {AT_MOST_US:g}: {met}),"
    )
    print(
        f"with a Compose {small - 8 * sample - batch.value:.2f} us more, and {sample:.2f} us for each sample in it;"
    )
    print(
        f"{transform:.2f} us for each further transform of a sample ({ROUNDS} rounds of {BATCHES} batches)."
    )
