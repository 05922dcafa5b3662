"""Every loader: the same batches in the same order, epochs that can be broken off, and nothing left when closed."""

import itertools
from typing import Any

import pytest
import torch

from tests.engine.loaders.loader_helpers import (
    AHEAD,
    BATCHES,
    GENERATOR,
    IN_LOOP,
    SPDL,
    THREADS,
    WORKERS,
    as_input,
    collected,
    config_of,
    digits,
    labels_of,
    opened,
    storage_of,
    variant_id,
)
from tests.engine_fixtures import SMALL, descendants, vitprof_threads
from vitprof.engine.loaders.contract import Loader, epoch_order
from vitprof.errors import DataError, SampleError, one_line

pytestmark = pytest.mark.usefixtures("shared_home")
N = SMALL.n_train
ORDERED = [
    BATCHES | {"shuffle": "block"},
    AHEAD | {"shuffle": "none"},
    WORKERS | {"shuffle": "block", "prefetch_factor": 5},
    WORKERS | {"shuffle": "none", "persistent_workers": False},
    WORKERS | {"storage": "idx", "persistent_workers": False},
]


@pytest.mark.parametrize("variant", ORDERED, ids=variant_id)
def test_each_epoch_has_each_sample_once_in_the_order_that_is_wished(
    variant: dict[str, Any],
) -> None:
    """And the same pixels, to the last bit; ../test_contract.py has the full shuffle of every loader."""
    images, labels = digits()
    config = config_of(**variant)
    storage = storage_of(config)
    with opened(config, storage=storage) as loader:
        for epoch in (0, 1):
            batches = collected(loader.epoch(epoch))
            order = epoch_order(N, 42, epoch, config.shuffle or "full")
            assert [len(batch.labels) for batch in batches] == [64] * 9 + [24]
            assert len(loader) == len(batches)
            assert all(batch.unreadable == () for batch in batches)
            assert torch.equal(labels_of(batches), labels[order])
            assert torch.equal(
                as_input(batches, getattr(storage, "pixels", "uint8")), images[order]
            )


def check_whole(loader: Loader, epoch: int) -> None:
    labels = labels_of(collected(loader.epoch(epoch)))
    assert torch.equal(labels, digits()[1][epoch_order(N, 42, epoch)])


BREAKABLE = [
    BATCHES,
    AHEAD | {"prefetch_factor": 4},
    THREADS | {"workers": 3, "prefetch_factor": 1},
    GENERATOR | {"storage": "idx"},
    IN_LOOP,
    WORKERS,
    WORKERS | {"storage": "idx", "persistent_workers": False},
    *SPDL,
]


@pytest.mark.parametrize("variant", BREAKABLE, ids=variant_id)
def test_after_an_epoch_that_is_broken_off_the_next_is_whole_and_nothing_is_left(
    variant: dict[str, Any],
) -> None:
    with opened(config_of(**variant)) as loader:
        collected(itertools.islice(loader.epoch(0), 2))
        check_whole(loader, 1)
        batches = loader.epoch(2)
        next(batches)
        batches.close()
        assert not vitprof_threads() or variant["loader"] == "threads"
        late = loader.epoch(3)
        next(late)
        batches = loader.epoch(4)
        got = collected(itertools.islice(batches, 3))
        late.close()  # only now, as one that an exception's traceback keeps alive
        got += collected(batches)
        assert torch.equal(labels_of(got), digits()[1][epoch_order(N, 42, 4)])
        next(loader.epoch(5))
        loader.close()
        assert not vitprof_threads()
        assert not descendants()
        loader.close()


@pytest.mark.parametrize(
    ("variant", "left"), [(AHEAD, 1), (THREADS, 0), *((variant, 0) for variant in SPDL)], ids=str
)
def test_an_epoch_that_was_overtaken_ends(variant: dict[str, Any], left: int) -> None:
    """Instead of waiting for a thread that has ended."""
    with opened(config_of(**variant)) as loader:
        overtaken = loader.epoch(0)
        next(overtaken)
        check_whole(loader, 1)
        assert len(list(overtaken)) <= left


@pytest.mark.parametrize(
    ("variant", "depth"),
    [(BATCHES, 0), (AHEAD, 1), (AHEAD, 3), (THREADS, 1), (THREADS, 2)],
    ids=str,
)
def test_batches_are_made_in_the_memory_given_and_not_more_than_asked_for(
    variant: dict[str, Any], depth: int
) -> None:
    given: list[torch.Tensor] = []
    batches = []

    def buffer(shape: tuple[int, ...]) -> torch.Tensor:
        given.append(torch.empty(shape, dtype=torch.uint8))
        return given[-1]

    reading = (
        1 if variant == AHEAD else 0
    )  # besides those that are ready; the pool's own count as being made
    with opened(config_of(**variant, prefetch_factor=depth or None), buffer=buffer) as loader:
        for batch in loader.epoch(0):
            batches.append(batch)
            assert len(given) <= len(batches) + depth + reading
    assert [batch.images.data_ptr() for batch in batches] == [memory.data_ptr() for memory in given]
    assert torch.equal(as_input(batches), digits()[0][epoch_order(N, 42, 0)])


BAD = range(57, 61)
"""Samples that cannot be read."""


def damaged(storage: Any, error: type[Exception] = SampleError) -> Any:
    """A pixel storage without `BAD`."""
    whole = storage.read

    def read(indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if bad := [index for index in indices.tolist() if index in BAD]:
            raise error(f"/data/{bad[0]}.raw is too short; delete /data and it is made again")
        return whole(indices, out)  # type: ignore[no-any-return]

    storage.read = read
    return storage


WHOLE = [BATCHES, AHEAD, GENERATOR, IN_LOOP, WORKERS]


@pytest.mark.parametrize(
    ("variant", "error", "skip"),
    [
        *((variant, SampleError, False) for variant in WHOLE),
        (WORKERS, DataError, False),
        (BATCHES, DataError, True),
    ],
    ids=str,
)
def test_an_unreadable_sample_is_named(
    variant: dict[str, Any], error: type[Exception], skip: bool
) -> None:
    """Other errors than a sample's are not skipped."""
    config = config_of(**variant, skip_unreadable=skip, shuffle="none")
    with opened(config, storage=damaged(storage_of(config), error)) as loader:
        for _ in range(2):
            with pytest.raises(error) as caught:
                list(loader.epoch(0))
            assert (
                one_line(caught.value)
                == "/data/57.raw is too short; delete /data and it is made again"
            )


@pytest.mark.parametrize("variant", WHOLE, ids=variant_id)
def test_where_they_are_skipped_unreadable_samples_are_named_and_the_rest_is_whole(
    variant: dict[str, Any],
) -> None:
    """Three of them are all of a batch, one is part of the next."""
    config = config_of(**variant, skip_unreadable=True, shuffle="none", batch_size=3)
    with opened(config, storage=damaged(storage_of(config))) as loader:
        batches = collected(loader.epoch(0))
    assert [len(batch.labels) for batch in batches] == [3] * 19 + [0, 2] + [3] * 179
    assert [len(batch.images) for batch in batches[18:22]] == [3, 0, 2, 3]
    left = torch.tensor([index for index in range(N) if index not in BAD])
    assert torch.equal(labels_of(batches), digits()[1][left])
    assert torch.equal(
        as_input([batch for batch in batches if len(batch.labels)]), digits()[0][left]
    )
    named = [line.partition(" ")[0] for batch in batches for line in batch.unreadable]
    assert named == [f"/data/{index}.raw" for index in BAD]
