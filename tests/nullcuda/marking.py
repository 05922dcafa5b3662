"""Scripts on a GPU, with hooks that mark its work, for processes that have not used it. Each returns as JSON what came
of them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data.dataloader
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from vitprof.watch.core.log import event_of
from vitprof.watch.events import Buffer, Kind, MarkedPoint
from vitprof.watch.patches import (
    Recorder,
    autograd,
    dataloader,
    iterables,
    marks,
    optimizer,
    replay,
)
from vitprof.watch.patching import OPTIMIZER


@contextlib.contextmanager
def hooked() -> Iterator[Recorder]:
    """All hooks that mark, which go without a trace."""
    methods = Tensor.to, Tensor.cuda, torch.cuda.set_stream
    recorder = Recorder(Buffer())
    installed = [
        dataloader.install(recorder, torch.utils.data.dataloader),
        marks.install(recorder),
        optimizer.install(recorder, sys.modules[OPTIMIZER]),
        autograd.install(recorder),
    ]
    yield recorder
    if recorder.failed is not None:
        raise recorder.failed
    for replacements in reversed(installed):
        replacements.remove()
    assert (Tensor.to, Tensor.cuda, torch.cuda.set_stream) == methods
    assert not {"to", "cuda"} & set(vars(Tensor))


NO_MATTER = (Kind.REACHED, Kind.DIFFERENTIATED, Kind.SAMPLED, Kind.FREED)


def names(recorder: Recorder) -> list[str]:
    """Returns the kinds of the events since the last call, and of marks the places. When the device passed
    a mark is no matter, nor is where a backward pass ends, nor a sampler or the end of an iterator that others held
    up."""
    found = []
    for row in recorder.buffer.take()[1]:
        event = event_of(row)
        if event.kind is Kind.MARKED:
            found.append(f"at {MarkedPoint(int(event.value('place'))).name.lower()}")
        elif event.kind not in NO_MATTER:
            found.append(event.kind.name.lower())
    return found


class Script:
    """A model on the GPU, and batches for it."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.device = device
        self.model = torch.nn.Linear(3, 1).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batches(self, n: int) -> Any:
        data = TensorDataset(torch.ones(2 * n, 3), torch.ones(2 * n))
        return DataLoader(data, batch_size=2)

    def work(self, x: Tensor) -> None:
        self.model(x).sum().backward()
        self.optimizer.step()

    def train(self, n: int = 3) -> None:
        for x, _ in self.batches(n):
            self.work(x.to(self.device))


def a_loop() -> str:
    """Returns the names of what is recorded of three steps."""
    with hooked() as recorder:
        Script().train()
        return json.dumps(names(recorder))


def the_next_epoch() -> str:
    """Returns the names of what is recorded as a second iteration begins."""
    with hooked() as recorder:
        script = Script()
        script.train(1)
        names(recorder)
        script.train(1)
        return json.dumps(names(recorder))


def with_a_closure() -> str:
    """Returns what is recorded of a step whose optimizer calls the model, as Lightning's do."""
    with hooked() as recorder:
        script = Script()
        script.train(1)
        for x, _ in script.batches(1):
            names(recorder)

            def closure(x: Tensor = x) -> Tensor:
                loss = script.model(x.to("cuda")).sum()
                loss.backward()
                return loss

            script.optimizer.step(closure)
            return json.dumps(names(recorder))
    raise AssertionError


def passed() -> str:
    """Returns the numbers of marks, of those that the device passed, and of losses among them."""
    with hooked() as recorder:
        Script().train(8)
        assert recorder.marks is not None
        recorder.marks.finish()
        events = [event_of(row) for row in recorder.buffer.take()[1]]
        marked = [event.value("token") for event in events if event.kind is Kind.MARKED]
        reached = [event for event in events if event.kind is Kind.REACHED]
        losses = [event for event in reached if event.value("loss") == event.value("loss")]
        in_time = all(event.value("reached_s") <= event.at_s for event in reached)
        same = sorted(marked) == sorted(event.value("token") for event in reached)
        return json.dumps([len(marked), same, len(losses), in_time])


def on_the_cpu() -> str:
    """Returns whether anything begins in a script that trains on the CPU."""
    with hooked() as recorder:
        Script("cpu").train()
        return json.dumps([recorder.marks is not None, torch.cuda.is_initialized()])  # type: ignore[no-untyped-call]


def a_batch_of_many() -> str:
    """Returns the places between the batch and the backward pass where labels stay on the CPU."""
    with hooked() as recorder:
        script = Script()
        script.train(1)
        names(recorder)
        for x, y in script.batches(1):
            there = x.to("cuda", non_blocking=True)
            there.to(torch.float16)
            y.to(torch.float64)
            with torch.cuda.stream(torch.cuda.Stream()):
                y.cuda()
            torch.ones(3).to("cuda")
            script.work(there)
        return json.dumps(names(recorder))


def copies_of_kept_batches() -> str:
    """Returns of each step on a kept batch how many copies are marked. The script changes what it copied
    in the second step of the second block of these."""
    replay.BLOCK_STEPS, replay.BLOCK_S = 6, 0.0
    replay.SETTLE_STEPS, replay.MOST_KEPT = 0, 2
    with hooked() as recorder:
        script = Script()
        script.train(1)
        plan = replay.ReplayPlan()
        recorder.measure_headroom(plan)
        loader = script.batches(30)
        batches = iter(loader)
        plan.begin(recorder.number(loader, "loader"), {})
        found, kept = list[list[int]](), set[int]()
        for x, _ in batches:
            names(recorder)
            moved = x.to("cuda", non_blocking=True)
            x.to(torch.ones(1, device="cuda").device)
            if plan.replays:
                kept.add(id(moved))
                found.append([plan.block, names(recorder).count("at copied")])
                if len(found) == 10:
                    moved.mul_(2)
            script.work(moved)
        assert not plan.refused
        return json.dumps(found)


def changed_kept_batches() -> str:
    """Returns how often a tensor of a kept batch is copied that the script has changed, each way."""
    with hooked() as recorder:
        script = Script()
        script.train(1)
        plan = replay.ReplayPlan()
        recorder.measure_headroom(plan)
        x = torch.ones(2, 3)
        plan.copies.watch([x])
        assert recorder.marks is not None
        recorder.marks.received([x])
        counts = list[int]()

        def copied(*args: Any) -> Tensor:
            names(recorder)
            moved = x.to("cuda", *args)
            counts.append(names(recorder).count("at copied"))
            return moved

        copied()
        copied().requires_grad_()
        copied()
        copied(torch.float16)
        x.add_(1)
        copied()
        x.to(torch.zeros(1, device="cuda"))
        x.to(torch.zeros(1, device="cuda"))
        counts.append(names(recorder).count("at copied"))
        plan.refuse("for a test")
        copied()
        copied()
        return json.dumps(counts)


def captured() -> str:
    """Returns what is recorded while a graph is captured, and after it."""
    with hooked() as recorder:
        script = Script()
        script.train(3)
        x = torch.ones(2, 3, device="cuda")
        torch.cuda.synchronize()
        names(recorder)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            script.work(x)
        meanwhile = names(recorder)
        for _ in script.batches(2):
            iterables.record_mark(recorder, entering=True)
            graph.replay()
            iterables.record_mark(recorder, entering=False)
        return json.dumps([meanwhile, names(recorder)])


def in_another_thread() -> str:
    """Returns what is recorded of a thread that fetches, while this one trains."""
    with hooked() as recorder:
        script = Script()
        script.train(2)
        names(recorder)
        thread = threading.Thread(target=list, args=(script.batches(2),))
        thread.start()
        thread.join()
        return json.dumps(names(recorder))


def in_threads_one_after_the_other() -> str:
    """Returns how many marks each of two threads sets that train in turn."""
    with hooked() as recorder:
        script, found = Script(), []
        for _ in range(2):
            thread = threading.Thread(target=script.train)
            thread.start()
            thread.join()
            found.append(sum(name.startswith("at ") for name in names(recorder)))
        return json.dumps(found)


def in_a_fork() -> str:
    """Returns how a fork ends that goes on fetching: its parent's marks are none of its own."""
    with hooked() as recorder:
        script = Script()
        script.train(2)
        child = os.fork()
        if not child:
            recorder.describe_again()
            for x, _ in script.batches(2):
                x.to(torch.float16)
            os._exit(recorder.marks is not None or recorder.failed is not None)
        _, status = os.waitpid(child, 0)
        script.train(2)
        return json.dumps([os.waitstatus_to_exitcode(status), recorder.marks is not None])


def until_it_fails() -> str:
    """Returns whether hooks still record once the device fails, and whether they mark."""
    with hooked() as recorder:
        script = Script()
        with contextlib.suppress(RuntimeError):
            script.train(200)
        names(recorder)
        list(script.batches(1))
        return json.dumps([recorder.marks is not None, names(recorder)])


def events_made() -> str:
    """Returns how many events of CUDA are made in 4 steps, and in 40."""
    with hooked() as recorder:
        script, counts = Script(), []
        for n in (4, 36):
            made = _counting()
            for x, _ in script.batches(n):
                script.work(x.to("cuda"))
                torch.cuda.synchronize()
            counts.append(made())
        assert recorder.marks is not None
        return json.dumps(counts)


def _counting() -> Any:
    made = torch.cuda.Event
    n = 0

    class Counted(made):  # type: ignore[misc, valid-type]
        def __new__(cls, **kwargs: Any) -> Any:
            nonlocal n
            n += 1
            return made.__new__(made, **kwargs)

    torch.cuda.Event = Counted  # type: ignore[misc]

    def count() -> int:
        torch.cuda.Event = made  # type: ignore[misc]
        return n

    return count


def where_the_optimizer_is() -> str:
    """Returns the device of the marks where the loss is on another card than the parameters."""
    with hooked() as recorder:
        model = torch.nn.Linear(3, 1).to("cuda:1")
        stepping = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2):
            model(x.to("cuda:1")).sum().to("cuda:0").backward()
            stepping.step()
        descriptions, rows = recorder.buffer.take()
        numbers = {d.number: d.facts["name"] for d in descriptions if d.kind == "device"}
        marked = [event_of(row).object for row in rows if row[0] == Kind.MARKED]
        return json.dumps([numbers[marked[0]], numbers[marked[-1]], torch.cuda.current_device()])
