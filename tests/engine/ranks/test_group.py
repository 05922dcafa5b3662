"""Each rank's part of an epoch: what PyTorch's DistributedSampler gives it, and all of it in all."""

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from tests.engine.loaders.loader_helpers import (
    AHEAD,
    BATCHES,
    IN_LOOP,
    THREADS,
    Sized,
    collected,
    config_of,
    digits,
    labels_of,
    opened,
    variant_id,
)
from tests.engine_fixtures import shared_home  # noqa: F401
from vitprof.engine.loaders.contract import Schedule, epoch_order
from vitprof.engine.ranks import group

RANKS = 4


def as_rank(rank: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "place", lambda: (rank, ranks))


@pytest.mark.parametrize("n", [1, 4, 103, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_rule_is_that_of_distributed_sampler(
    n: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(ranks):
        as_rank(rank, ranks, monkeypatch)
        if n >= ranks:  # it fails for less
            theirs = DistributedSampler(range(n), ranks, rank, shuffle=False, drop_last=True)  # type: ignore[arg-type]
            assert list(range(n)[group.share(n, train=True)]) == list(theirs)
        of_test = range(n)[group.share(n, train=False)]
        assert list(of_test) == list(range(n))[rank::ranks], "each sample is evaluated once"


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
def test_all_ranks_together_have_each_sample_of_an_epoch_once(
    shuffle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, config = 103, config_of(batch_size=8, shuffle=shuffle)
    for epoch in (0, 1):
        parts = []
        for rank in range(RANKS):
            as_rank(rank, RANKS, monkeypatch)
            schedule = Schedule(Sized(n), config, train=True)
            batches = schedule.batches(epoch)
            assert [len(batch) for batch in batches] == [8, 8, 8, 1]
            assert (len(schedule), schedule.n) == (4, 25), "as many steps for each rank"
            parts.append(torch.cat(batches))
        order = epoch_order(n, config.seed, epoch, shuffle)
        assert torch.stack(parts).T.flatten().tolist() == order[:100].tolist(), (
            "the first batches of one rank"
        )


@pytest.mark.parametrize("variant", [BATCHES, AHEAD, IN_LOOP, THREADS], ids=variant_id)
@pytest.mark.usefixtures("shared_home")
def test_loaders_give_a_rank_its_part(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, labels = config_of(**variant), digits()[1]
    for rank in range(2):
        as_rank(rank, 2, monkeypatch)
        with opened(config) as loader:
            batches = collected(loader.epoch(1))
            assert len(loader) == len(batches) == 5
        assert torch.equal(
            labels_of(batches), labels[epoch_order(len(labels), config.seed, 1)[rank::2]]
        )
