"""The order of an epoch, and how it is cut into batches."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.loaders.loader_helpers import Sized
from vitprof.config import RunConfig
from vitprof.engine.loaders.contract import BLOCK_SAMPLES, Schedule, epoch_order


def test_a_full_shuffle_depends_on_seed_and_epoch() -> None:
    order = epoch_order(1000, 42, 0)
    assert order.dtype == torch.int64
    assert torch.equal(order, epoch_order(1000, 42, 0))
    for other in (epoch_order(1000, 42, 1), epoch_order(1000, 43, 0), torch.arange(1000)):
        assert not torch.equal(order, other)


@given(
    st.integers(1, 700),
    st.integers(1, 200),
    st.sampled_from(["full", "block", "none"]),
    st.integers(0, 2**32 - 1),
)
def test_each_order_has_each_sample_once(n: int, block: int, shuffle: str, seed: int) -> None:
    assert epoch_order(n, seed, 10**6, shuffle, block).sort().values.tolist() == list(range(n))


def test_a_block_shuffle_keeps_neighbours_together() -> None:
    order = epoch_order(1000, 42, 3, "block", 64).tolist()
    steps = [b - a for a, b in pairwise(order)]
    assert sum(step != 1 for step in steps) <= 1000 // 64
    starts = [order[0], *(b for a, b in pairwise(order) if b - a != 1)]
    assert all(start % 64 == 0 for start in starts)
    assert starts != sorted(starts)
    assert order != epoch_order(1000, 42, 4, "block", 64).tolist()


def test_only_the_last_batch_is_smaller() -> None:
    schedule = Schedule(Sized(100), RunConfig(batch_size=30), train=True)
    assert (len(schedule), [len(batch) for batch in schedule.batches(0)]) == (4, [30, 30, 30, 10])
    assert torch.equal(torch.cat(schedule.batches(2)), epoch_order(100, 42, 2))
    assert len(Schedule(Sized(90), RunConfig(batch_size=30), train=True)) == 3
    # A resident storage cannot be asked with indices on the host.
    schedule = Schedule(
        Sized(100, device=torch.device("meta")), RunConfig(batch_size=30), train=True
    )
    assert {batch.device.type for batch in schedule.batches(0)} == {"meta"}
    for shuffle in ("full", "block", "none"):  # a test set comes as it is stored
        schedule = Schedule(Sized(100), RunConfig(batch_size=30, shuffle=shuffle), train=False)
        assert torch.cat(schedule.batches(1)).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("storage", "block"), [(Sized(1000), BLOCK_SAMPLES), (Sized(1000, block=50), 50)]
)
def test_blocks_are_the_chunks_of_the_storage(storage: Sized, block: int) -> None:
    schedule = Schedule(storage, RunConfig(batch_size=10, shuffle="block"), train=True)
    assert torch.equal(torch.cat(schedule.batches(0)), epoch_order(1000, 42, 0, "block", block))
