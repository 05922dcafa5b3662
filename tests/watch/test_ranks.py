"""What is a rank's own of its steps, in a group of this process alone."""

import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.watch.test_steps import marks_of
from vitprof.measure.devices import CpuDevice
from vitprof.watch import ranks
from vitprof.watch.batches import Step
from vitprof.watch.fetch_times import MAKING
from vitprof.watch.loaders import BackwardPasses
from vitprof.watch.ranks import BROADCAST, Forward, n_collectives


@pytest.fixture
def forward(tmp_path: Path) -> Iterator[Forward]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    made = Forward(CpuDevice(perf_counter), shares=True)
    yield made
    made.close()
    dist.destroy_process_group()


def test_waits_in_the_sending_of_buffers_are_taken_off(
    forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, group = SimpleNamespace(now=8.0), dist.distributed_c10d._get_default_group()
    monkeypatch.setattr(ranks, "perf_counter", lambda: clock.now)
    sending = forward._broadcast
    assert sending is not None

    def slowly(*args: Any) -> Any:
        clock.now += 0.5
        return sending(*args)

    forward._broadcast = slowly
    forward.begin(clock.now)
    clock.now += 0.25
    getattr(dist, BROADCAST)(group, [torch.ones(3)], 1000, 0)
    assert forward.host_s(8.0) == 0.25
    dist.all_reduce(torch.ones(1))
    assert math.isnan(forward.host_s(8.0)), "what waits for others in it is not known"
    forward._broadcast = sending


def test_own_work_between_two_steps_has_no_barrier_and_follows_an_optimizer(
    forward: Forward,
) -> None:
    assert all(map(math.isnan, forward.begin(10.0)[:2]))
    forward.stepped(12.0)
    assert forward.begin(12.5)[:2] == (0.5, 0)
    between_s, collectives, _ = forward.begin(13.0)
    assert math.isnan(between_s), "of a batch without a step of the optimizer before it"
    assert collectives == 0
    forward.stepped(14.0)
    dist.barrier()
    between_s, collectives, _ = forward.begin(20.0)
    assert math.isnan(between_s)
    assert collectives == 1


def test_waits_for_other_ranks_in_the_loader_are_none_for_data(forward: Forward) -> None:
    forward.begin(10.0)
    forward.stepped(12.0)
    forward.request()
    MAKING.now.laps, MAKING.now.waited_s, waits = {}, 0.0, multiprocessing.Barrier(1)
    dist.all_reduce(torch.ones(1))
    dist.barrier(async_op=True).wait()
    waits.wait()
    MAKING.now.laps = None
    later_s = forward.received(13.0) - 13.0
    assert later_s == MAKING.now.waited_s > 0
    between_s, collectives, awaited_s = forward.begin(13.0 + later_s)
    assert (round(between_s, 6), collectives, awaited_s, forward.n_unknown) == (1.0, 2, later_s, 0)
    forward.request()
    torch.ops._c10d_functional.wait_tensor(
        torch.ops._c10d_functional.all_reduce(torch.ones(1), "sum", "0")
    )
    assert (forward.received(14.0), forward.n_unknown) == (14.0, 1), (
        "one that is not waited for in Python"
    )
    forward.request()
    dist.barrier()
    forward.received(15.0, ended=True)
    assert forward.n_unknown == 2


def test_a_step_notes_what_it_was_given_and_its_own_times(forward: Forward) -> None:
    step = Step(marks_of(t_start=1.0, t_got=perf_counter()), (), last=False)
    forward.stepped(0.75)
    forward.begin_step(step, torch.ones(4, 3))
    forward.end(step)
    made = step.marks.made
    assert made is not None
    assert (made.batch_values, made.between_s) == (12, 0.25)
    assert 0 <= made.forward_s < 10


def test_nothing_is_touched_in_a_job_of_one_process_and_pytorch_is_as_before_in_the_end(
    forward: Forward,
) -> None:
    assert getattr(dist, BROADCAST) == forward._timed_broadcast
    alone = Forward(CpuDevice(perf_counter), shares=False)
    assert all(map(math.isnan, alone.begin(1.0)))
    assert math.isnan(alone.host_s(1.0))
    assert getattr(dist, BROADCAST) == forward._timed_broadcast
    forward.close()
    assert getattr(dist, BROADCAST) == forward._broadcast


def test_where_collectives_are_not_counted_times_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_world")
    assert math.isnan(n_collectives())


def test_parameters_whose_values_are_freed_are_not_looked_at() -> None:
    """As FSDP frees those of whole parameters between their uses: reading them would end the process."""
    model = torch.nn.Linear(4, 2)
    freed = torch.nn.Parameter(torch.ones(8))
    loss = model(torch.ones(1, 4)).sum() + (freed * 2).sum()
    storage = freed.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    loop, passes = (
        SimpleNamespace(steps=SimpleNamespace(confirmed=False), step=object()),
        BackwardPasses(),
    )
    assert not passes.train(loop, loss)  # type: ignore[arg-type]
    assert {id(p) for p, _ in passes._kept} == set(map(id, model.parameters()))
    storage.resize_(size)
