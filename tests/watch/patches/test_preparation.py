"""Steps that are looked at: when a model is called with a batch, and what the thread has used."""

import itertools
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader, TensorDataset

from vitprof.watch.core.log import event_of
from vitprof.watch.events import Buffer, Event, Kind
from vitprof.watch.patches import Recorder, autograd, dataloader, optimizer, preparation, waits
from vitprof.watch.patches.preparation import OFTEN, UNSEEN
from vitprof.watch.patching import OPTIMIZER

HOOKS = torch.nn.modules.module._global_forward_pre_hooks
LOOK = [Kind.LOOKED_AT, Kind.MODEL_CALLED, Kind.USED]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """All hooks in this process, for this test. Each step is looked at."""
    recorder = Recorder(Buffer())
    installed = [
        dataloader.install(recorder, torch.utils.data.dataloader),
        preparation.install(recorder, between=lambda: 0.0),
        optimizer.install(recorder, sys.modules[OPTIMIZER]),
        autograd.install(recorder),
        waits.install(recorder),
    ]
    yield recorder
    for replacements in reversed(installed):
        replacements.remove()
    assert not HOOKS


class Script:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batches(self, n: int) -> Any:
        return DataLoader(TensorDataset(torch.ones(2 * n, 3)), batch_size=2)

    def train(self, n: int) -> None:
        for (x,) in self.batches(n):
            self.model(torch.nn.ReLU()(x)).sum().backward()
            self.optimizer.step()


def looks(recorder: Recorder) -> list[Event]:
    found = [event_of(row) for row in recorder.buffer.take()[1]]
    return [event for event in found if event.kind in LOOK]


def test_a_step_is_looked_at_from_its_batch_to_its_update_once_one_has_trained(
    recorder: Recorder,
) -> None:
    Script().train(3)
    found = looks(recorder)
    assert [event.kind for event in found] == 2 * LOOK
    assert found[0].value("little_s") > 0
    called, used = found[1:3]
    assert used.value("cpu_s") >= called.value("cpu_s")
    assert used.value("taken") >= called.value("taken")


def test_a_batch_that_is_fetched_ahead_belongs_to_the_look(recorder: Recorder) -> None:
    script = Script()
    script.train(2)
    looks(recorder)
    batches = iter(script.batches(3))
    next(batches)
    (x,) = next(batches)
    script.model(x).sum().backward()
    script.optimizer.step()
    next(batches)
    assert [event.kind for event in looks(recorder)] == [*LOOK, Kind.LOOKED_AT]


def test_several_calls_with_one_batch_are_all_seen(recorder: Recorder) -> None:
    script = Script()
    script.train(2)
    looks(recorder)
    for (x,) in script.batches(1):
        for _ in range(3):
            script.model(x).sum().backward()
            script.optimizer.step()
    assert [event.kind for event in looks(recorder)] == [Kind.LOOKED_AT, *(3 * LOOK[1:])]


def test_a_model_that_is_no_module_is_not_listened_for_any_longer(recorder: Recorder) -> None:
    weight = torch.ones(3, requires_grad=True)
    listening = 0
    for (x,) in Script().batches(3 * UNSEEN):
        listening += len(HOOKS)
        (x * weight).sum().backward()
    assert listening == UNSEEN
    assert [event.kind for event in looks(recorder)] == (3 * UNSEEN - 1) * [Kind.LOOKED_AT]


def spent(recorder: Recorder) -> list[Event]:
    found = [event_of(row) for row in recorder.buffer.take()[1]]
    return [event for event in found if event.kind is Kind.SPENT]


def test_what_the_loop_reads_after_its_batch_is_recorded(
    recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(bytes(1_000_000))
    weight = torch.ones(3, requires_grad=True)
    (weight * 1).sum().backward()
    spent(recorder)
    for (x,) in Script().batches(2):
        (tmp_path / "data").read_bytes()
        (x * weight).sum().backward()
    came, worked, *second = spent(recorder)
    assert len(second) == 2
    read = worked.value("read_bytes") - came.value("read_bytes")
    assert 1_000_000 <= read < 1_010_000
    assert worked.value("cpu_s") >= came.value("cpu_s")


def test_where_anything_was_compiled_no_call_is_listened_to(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.train(1)  # the first optimizer imports the compiler
    looks(recorder)
    compiler = SimpleNamespace(FRAME_COUNTER=1)
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", compiler)
    script.train(4)
    assert [event.kind for event in looks(recorder)] == 4 * [Kind.LOOKED_AT]


def test_a_step_whose_batch_comes_out_of_a_queue_is_looked_at(recorder: Recorder) -> None:
    """Another thread fetches, and fills it."""
    script = Script()
    script.train(1)
    looks(recorder)
    filled: queue.Queue[torch.Tensor | None] = queue.Queue()
    for _ in range(3):
        filled.put(torch.ones(2, 3))
        filled.put(None)
    for _ in range(3):
        x = filled.get()
        assert filled.get() is None, "which is no batch"
        script.model(x).sum().backward()
        script.optimizer.step()
    assert [event.kind for event in looks(recorder)] == 3 * LOOK


def test_a_thread_that_only_fetches_is_not_looked_at(recorder: Recorder) -> None:
    script = Script()
    script.train(1)
    thread = threading.Thread(target=list, args=(script.batches(3),))
    thread.start()
    thread.join()
    assert looks(recorder) == []


def test_between_two_looks_is_some_time_and_more_of_it_later() -> None:
    recorder = Recorder(Buffer())
    watching = preparation.PreparationSampler(recorder, between=lambda: 1.0)
    watching.begin()
    looked = []
    for step in range(2000):
        now_s = step / 256  # exact
        watching.received(now_s)
        if HOOKS:
            looked.append(step)
            torch.nn.Linear(1, 1)(torch.ones(1))
        watching.stepped(now_s)
        watching.requested()
    watching.remove()
    apart = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert set(apart[: OFTEN - 2]) == {6}
    assert set(apart[OFTEN:]) == {52}
