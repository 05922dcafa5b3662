"""Collectives are counted and waits for other ranks recorded, in a group of this process alone."""

import math
import multiprocessing
import multiprocessing.synchronize
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.utils.data.dataloader
from torch.utils.data import DataLoader, TensorDataset

from vitprof.watch.core.log import event_of
from vitprof.watch.events import Buffer, Event, Kind
from vitprof.watch.fetch_times import MAKING
from vitprof.watch.patches import Recorder, autograd, collectives, dataloader, optimizer
from vitprof.watch.patching import OPTIMIZER

PATCHED = (
    (dist, collectives.BROADCAST),
    (dist.Work, "wait"),
    (multiprocessing.synchronize.Barrier, "wait"),
)


@pytest.fixture
def n_ranks(request: pytest.FixtureRequest) -> int:
    return int(getattr(request, "param", 2))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_ranks: int) -> Iterator[Recorder]:
    """All hooks in this process, for this test, which takes itself for one of several ranks."""
    monkeypatch.setattr(collectives, "n_ranks", lambda: n_ranks)
    before = [getattr(owner, name) for owner, name in PATCHED]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    recorder = Recorder(Buffer())
    installed = [
        dataloader.install(recorder, torch.utils.data.dataloader),
        collectives.install(recorder),
        optimizer.install(recorder, sys.modules[OPTIMIZER]),
        autograd.install(recorder),
    ]
    yield recorder
    for replacements in reversed(installed):
        replacements.remove()
    dist.destroy_process_group()
    assert [getattr(owner, name) for owner, name in PATCHED] == before


def train(n: int = 1) -> None:
    model = torch.nn.Linear(3, 1)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(2 * n, 3)), batch_size=2):
        model(x).sum().backward()
        stepping.step()


def events(recorder: Recorder, *kinds: Kind) -> list[Event]:
    found = [event_of(row) for row in recorder.buffer.take()[1]]
    return [event for event in found if event.kind in kinds]


def test_collectives_are_counted_before_the_next_event_where_they_have_changed(
    recorder: Recorder,
) -> None:
    train()
    assert [e.value("collectives") for e in events(recorder, Kind.COUNTED)] == [0.0]
    dist.all_reduce(torch.ones(1))
    train(2)
    after = events(recorder, Kind.COUNTED, Kind.REQUESTED, Kind.RECEIVED)
    assert [event.kind for event in after][:3] == [Kind.COUNTED, Kind.REQUESTED, Kind.RECEIVED]
    assert [e.value("collectives") for e in after if e.kind is Kind.COUNTED] == [1.0]
    assert after[0].at_s <= after[1].at_s


def test_waits_for_others_are_recorded_with_the_collectives_that_they_end(
    recorder: Recorder,
) -> None:
    train()
    events(recorder)
    dist.all_reduce(torch.ones(1))
    dist.barrier(async_op=True).wait()
    multiprocessing.Barrier(1).wait()
    waits = events(recorder, Kind.AWAITED)
    assert [wait.value("collectives") for wait in waits] == [1.0, 1.0, 0.0]
    assert all(wait.value("since_s") <= wait.at_s for wait in waits)
    assert not any(wait.value("sent") for wait in waits)


def test_the_sending_of_buffers_is_told_from_other_waits(recorder: Recorder) -> None:
    train()
    events(recorder)
    group = dist.distributed_c10d._get_default_group()
    getattr(dist, collectives.BROADCAST)(group, [torch.ones(3)], 1000, 0)
    (wait,) = events(recorder, Kind.AWAITED)
    assert wait.value("sent") == 1.0
    assert wait.value("collectives") == 1.0


def test_a_wait_inside_a_dataset_is_no_part_of_making_the_batch(recorder: Recorder) -> None:
    train()
    making = MAKING.now
    making.laps = {}
    making.waited_s = 0.0
    try:
        dist.barrier()
    finally:
        making.laps = None
    (wait,) = events(recorder, Kind.AWAITED)
    assert making.waited_s == wait.at_s - wait.value("since_s") > 0


@pytest.mark.parametrize("n_ranks", [1], indirect=True)
def test_nothing_is_replaced_in_a_process_that_trains_alone(recorder: Recorder) -> None:
    own = dist.Work.wait
    train()
    dist.all_reduce(torch.ones(1))
    assert dist.Work.wait is own
    assert not events(recorder, Kind.COUNTED, Kind.AWAITED)


def test_where_collectives_are_not_counted_it_is_said_once(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(dist.distributed_c10d, "_world")
        assert math.isnan(collectives.n_collectives())
    monkeypatch.setattr(collectives, "n_collectives", lambda: math.nan)
    train(3)
    counts = [event.value("collectives") for event in events(recorder, Kind.COUNTED)]
    assert len(counts) == 1
    assert math.isnan(counts[0])
