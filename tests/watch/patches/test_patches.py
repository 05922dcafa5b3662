"""The hooks record what a real loop of PyTorch's does, and go without a trace."""

import contextlib
import gc
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from tests.forking import exit_status_of, fork_doing
from vitprof.watch.core.compute_parts import ComputeParts, compute_parts
from vitprof.watch.core.log import EventLog, event_of
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import Buffer, Event, Kind
from vitprof.watch.patches import Recorder, autograd, dataloader, making, optimizer, waits
from vitprof.watch.patches.batch_sizes import BatchSizes
from vitprof.watch.patches.limits import StepLimit, ThreadState
from vitprof.watch.patching import OPTIMIZER

PATCHED = (
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
    (torch.utils.data.dataloader._SingleProcessDataLoaderIter, "__init__"),
    (torch.autograd, "backward"),
    (queue.Queue, "get"),
)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """All hooks in this process, for this test."""
    monkeypatch.setattr(making, "is_timed", lambda: False)  # by another test of this process
    before = [getattr(owner, name) for owner, name in PATCHED]
    recorder = Recorder(Buffer())
    installed = [
        dataloader.install(recorder, torch.utils.data.dataloader),
        optimizer.install(recorder, sys.modules[OPTIMIZER]),
        autograd.install(recorder),
        waits.install(recorder),
    ]
    yield recorder
    for replacements in reversed(installed):
        replacements.remove()
    assert [getattr(owner, name) for owner, name in PATCHED] == before


def events(recorder: Recorder) -> list[Event]:
    return [event_of(row) for row in recorder.buffer.take()[1]]


def kinds(recorder: Recorder) -> list[Kind]:
    return [event.kind for event in events(recorder)]


def loader(n: int = 4) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(n, 3)), batch_size=2)


def train(batches: DataLoader[tuple[torch.Tensor, ...]]) -> None:
    model = torch.nn.Linear(3, 1)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in batches:
        model(x).sum().backward()
        stepping.step()


def test_batches_of_workers_are_the_scripts_own_once_hooks_are_taken_back() -> None:
    """As after `--detach-after`: workers that run already, and later ones, send how they made a batch with it."""

    def work() -> int:
        module = torch.utils.data.dataloader
        making.time_fetching(module)
        hooks = dataloader.install(Recorder(Buffer()), module)
        batches = DataLoader(TensorDataset(torch.ones(6, 3)), batch_size=2, num_workers=1)
        begun = iter(batches)
        found = [next(begun)]
        hooks.remove()
        found += [*begun, *batches]
        return sum(len(batch) != 1 or batch[0].shape != (2, 3) for batch in found)

    assert exit_status_of(fork_doing(work)) == 0


def test_a_loop_is_recorded_in_order(recorder: Recorder) -> None:
    train(loader())
    work = [Kind.BACKWARD, Kind.DIFFERENTIATED, Kind.STEPPED]
    step = [Kind.REQUESTED, Kind.RECEIVED, *work]
    assert kinds(recorder) == [Kind.BEGUN, *step, *step, Kind.REQUESTED, Kind.EXHAUSTED]


class Waits(Dataset[torch.Tensor]):
    """Notes what the recorder says of the wait that its sample is made in; the last sample fails."""

    def __init__(self, recorder: Recorder, fails: bool) -> None:
        self.recorder = recorder
        self.fails = fails
        self.pending: list[float] = []

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        self.pending.append(self.recorder.pending[0])
        if self.fails and index:
            raise RuntimeError("it is damaged")
        return torch.ones(2)


@pytest.mark.parametrize("fails", [False, True])
def test_others_can_see_since_when_it_waits(recorder: Recorder, fails: bool) -> None:
    dataset = Waits(recorder, fails)
    after = []
    with contextlib.suppress(RuntimeError):
        for _ in DataLoader(dataset, batch_size=1):
            after.append(recorder.pending[0])
    assert recorder.pending[0] == 0.0
    assert set(after) == {0.0}
    requested = [event.at_s for event in events(recorder) if event.kind is Kind.REQUESTED]
    assert dataset.pending == requested[:2], "to the bit, so that looks and events meet"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_takes_a_while_is_timed_in_the_process_that_trains(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(dataloader, "LEAST_SAMPLING_S", 0.0)
    samples = TensorDataset(torch.ones(8, 3))
    for _ in DataLoader(samples, batch_size=2, num_workers=workers):
        pass
    found = [event for event in events(recorder) if event.kind is not Kind.WAITED]
    sampled = [event for event in found if event.kind is Kind.SAMPLED]
    assert all(event.value("since_s") <= event.at_s for event in sampled)
    assert len({event.thread for event in sampled}) == 1
    kinds_of = [event.kind for event in found]
    begun = kinds_of.index(Kind.BEGUN)
    # the first two for a worker are drawn as the iteration begins
    assert kinds_of[:begun] == 2 * workers * [Kind.SAMPLED]
    batch = [Kind.REQUESTED, Kind.SAMPLED, Kind.RECEIVED]
    assert [kind for kind in kinds_of[begun + 1 :] if kind in batch][:6] == 2 * batch
    assert len(sampled) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_is_timed_while_it_is_freed_and_not_kept(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """What a sampler has drawn is freed with it, by no call that could be seen."""
    monkeypatch.setattr(dataloader, "LEAST_FREEING_S", 0.0)
    freed_s: list[float] = []

    class Indices(list[int]):
        def __del__(self) -> None:
            freed_s.append(time.perf_counter())

    class Drawn(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield from Indices(range(8))

    samples = TensorDataset(torch.ones(8, 3))
    batches = DataLoader(samples, batch_size=2, sampler=Drawn(), num_workers=workers)
    for _ in batches:
        break
    found = [event for event in events(recorder) if event.kind is not Kind.WAITED]
    freed = found[-1]
    requested = next(event for event in found if event.kind is Kind.REQUESTED)
    assert freed.kind is Kind.FREED
    assert freed.object == requested.object
    assert freed.value("since_s") < freed_s[-1] < freed.at_s


def test_an_iterator_that_only_the_end_of_python_frees_is_not_timed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataloader, "LEAST_FREEING_S", 0.0)
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    batches = iter(loader())
    next(batches)
    recorder.buffer.take()
    with monkeypatch.context() as cleared:
        cleared.setattr(dataloader, "perf_counter", None)
        del batches
    assert recorder.buffer.take() == ([], [])


def test_passes_and_steps_of_optimizers_have_their_beginnings(recorder: Recorder) -> None:
    train(loader())
    found = events(recorder)
    passes = [event for event in found if event.kind is Kind.BACKWARD]
    ends = [event for event in found if event.kind is Kind.DIFFERENTIATED]
    updates = [event for event in found if event.kind is Kind.STEPPED]
    assert [end.value("since_s") for end in ends] == [event.at_s for event in passes]
    for end, update in zip(ends, updates, strict=True):
        assert end.value("since_s") < end.at_s < update.value("since_s") < update.at_s


def test_an_optimizer_that_steps_within_another_has_its_own_beginning(recorder: Recorder) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    inner = torch.optim.SGD([weight], lr=0.1)

    class Outer(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            inner.step()

    weight.sum().backward()
    Outer([weight], lr=0.1).step()
    of_inner, of_outer = (event for event in events(recorder) if event.kind is Kind.STEPPED)
    assert of_outer.value("since_s") < of_inner.value("since_s") < of_inner.at_s < of_outer.at_s


def test_a_pass_that_fails_has_no_end(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()
    assert kinds(recorder) == [Kind.BACKWARD]


def test_a_step_that_the_scaler_skips_is_no_step_and_one_that_it_makes_begins_within(
    recorder: Recorder,
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    stepping = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (float("inf"), 1.0):
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(stepping)
        scaler.update()
        stepping.zero_grad()
    (update,) = (event for event in events(recorder) if event.kind is Kind.STEPPED)
    assert update.value("since_s") < update.at_s


@pytest.mark.parametrize("has_closure", [False, True])
def test_the_parts_of_a_step_hold_what_the_script_times_in_them(
    recorder: Recorder, *, has_closure: bool
) -> None:
    """With a closure the optimizer calls the model and the backward pass, as Lightning has it."""
    timed: list[ComputeParts] = []
    model = torch.nn.Linear(3, 1)
    last = Reading()
    for parameter in model.parameters():
        # Read within the pass: after it, another program may run before the script reads its clock.
        parameter.register_post_accumulate_grad_hook(last)
    stepping = TimedSGD(model.parameters(), lr=0.1)
    for (x,) in loader(8):
        begun_s = time.perf_counter()

        def differentiate(x: torch.Tensor = x, begun_s: float = begun_s) -> torch.Tensor:
            loss = model(x).sum()
            loss.register_hook(clock)
            forward_s = time.perf_counter() - begun_s
            loss.backward()
            timed.append(ComputeParts(forward_s, last.read_s - clock.read_s, 0.0))
            return loss

        if has_closure:
            stepping.step(differentiate)
        else:
            differentiate()
            stepping.step()
        timed[-1] = timed[-1]._replace(optimizer_compute_s=stepping.took_s)
    log = EventLog()
    log.add(*recorder.buffer.take())
    training = find_training(log)
    assert training is not None
    found = [compute_parts(step) for step in find_steps(training).steps]
    assert len(found) == len(timed) == 4
    assert (np.array(found) >= np.array(timed)).all()


class Reading:
    """A hook that reads the clock."""

    read_s = math.nan

    def __call__(self, *_: object) -> None:
        self.read_s = time.perf_counter()


clock = Reading()


class TimedSGD(torch.optim.SGD):
    """Says how long it took in itself."""

    took_s = math.nan

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        begun_s = time.perf_counter()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= group["lr"] * parameter.grad
        self.took_s = time.perf_counter() - begun_s


def test_a_batch_has_its_samples_and_a_loader_is_described_once(recorder: Recorder) -> None:
    batches = loader()
    train(batches)
    train(batches)
    descriptions, rows = recorder.buffer.take()
    assert [d.facts["batch_size"] for d in descriptions if d.kind == "loader"] == [2]
    received = [event_of(row) for row in rows if row[0] == Kind.RECEIVED]
    assert [event.value("samples") for event in received] == 4 * [2.0]
    assert [event.value("values") for event in received] == 4 * [6.0]


def test_gradients_are_noted_as_a_batch_is_requested(recorder: Recorder) -> None:
    iterator = iter(loader())
    with torch.no_grad():
        next(iterator)
    next(iterator)
    requested = [event for event in events(recorder) if event.kind is Kind.REQUESTED]
    assert [event.value("gradients") for event in requested] == [0.0, 1.0]


@pytest.mark.parametrize(("frames", "n_calls"), [(0, 2), (1, 0)])
def test_a_model_that_gets_a_batch_without_gradients_is_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, frames: int, n_calls: int
) -> None:
    """Unless anything was compiled: for a new hook it would have to be compiled again."""
    compiler = SimpleNamespace(FRAME_COUNTER=frames)
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", compiler)
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for (x,) in loader():
            model(x)
    called = [event for event in events(recorder) if event.kind is Kind.CALLED]
    assert [event.value("gradients") for event in called] == n_calls * [0.0]


@pytest.mark.parametrize(
    ("trained", "gradients"),
    [("a part", [0.0, 1.0]), ("all", [0.0, 1.0]), ("others", [0.0]), ("by name", [0.0, 1.0])],
)
def test_a_model_that_gets_scored_samples_again_is_recorded(
    recorder: Recorder, trained: str, gradients: list[float]
) -> None:
    """With gradients, whatever was done with them before: some train on the hardest of a batch alone."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    if trained == "by name":  # a model that takes no tensor by its place, as those of transformers
        model.forward = lambda *, x: torch.nn.Sequential.forward(model, x)  # type: ignore[method-assign, assignment]
    dataset = TensorDataset(torch.arange(24.0).reshape(8, 3))
    with torch.no_grad():
        (x,) = next(iter(DataLoader(dataset, batch_size=8)))
        x = x / 7
        model(x=x) if trained == "by name" else model(x)
    part = {"all": x, "others": x + 1}.get(trained, x[[5, 2]])
    model(x=part) if trained == "by name" else model(part)
    called = [event for event in events(recorder) if event.kind is Kind.CALLED]
    assert [event.value("gradients") for event in called] == gradients
    assert not torch.nn.modules.module._global_forward_pre_hooks, "nothing listens any more"


def test_samples_that_are_all_alike_are_not_known_again(recorder: Recorder) -> None:
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        (x,) = next(iter(loader()))
        model(torch.zeros_like(x))
    model(torch.zeros_like(x))
    called = [event for event in events(recorder) if event.kind is Kind.CALLED]
    assert [event.value("gradients") for event in called] == [0.0]


def test_an_iteration_that_fails_ends_with_its_own_error(recorder: Recorder) -> None:
    def fail(_samples: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(iter(DataLoader(TensorDataset(torch.ones(2, 3)), collate_fn=fail)))
    assert events(recorder)[-1].value("failed") == 1.0


class InheritsAll(queue.Queue[Any]):
    """As gevent's class of C inherits: it has no `get` of its own."""


@pytest.mark.parametrize("in_its_place", [InheritsAll, dict])
def test_a_queue_that_cannot_be_patched_is_let_alone(
    monkeypatch: pytest.MonkeyPatch, in_its_place: type[Any]
) -> None:
    """gevent replaces it by one that cannot be changed; a dictionary's `get` cannot be either."""
    monkeypatch.setattr(queue, "Queue", in_its_place)
    before = Future.result
    replacements = waits.install(Recorder(Buffer()))
    assert Future.result is not before
    replacements.remove()
    assert Future.result is before


@pytest.mark.parametrize("by_name", [False, True])
def test_batches_of_a_pool_are_waited_for_in_a_for_loop_too(
    recorder: Recorder, by_name: bool
) -> None:
    """Its `__next__` is another name of `next`, and was there before that was replaced."""
    with ThreadPool(1) as pool:
        batches = pool.imap(torch.ones, [(2, 3), (2, 3)])
        found = [batches.next(), batches.next()] if by_name else list(batches)  # type: ignore[attr-defined]
    assert [len(batch) for batch in found] == [2, 2]
    # threads of the pool wait for their tasks meanwhile
    here = [event for event in events(recorder) if event.thread == threading.get_ident()]
    waited = [event for event in here if event.kind is Kind.WAITED]
    assert [event.value("samples") for event in waited][:2] == [2.0, 2.0]


def test_what_a_thread_gives_to_others_is_recorded_before_these_get_it(recorder: Recorder) -> None:
    batch = torch.ones(5, 2)
    future: Future[torch.Tensor] = Future()
    filled: queue.Queue[Any] = queue.Queue()
    future.set_result(result=batch)
    filled.put("no batch")
    filled.put(item=batch)
    future.result()
    found = events(recorder)
    assert [event.kind for event in found] == [Kind.GIVEN, Kind.GIVEN, Kind.WAITED]
    assert [event.value("first_tensor") for event in found] == 3 * [id(batch)]
    assert found[0].object == found[2].object


def test_a_batch_from_a_queue_has_a_number_of_its_own_tensor(recorder: Recorder) -> None:
    filled: queue.Queue[torch.Tensor | str] = queue.Queue()
    batch = torch.ones(5, 2)
    filled.put(batch)
    filled.put("no batch")
    filled.get()
    filled.get()
    first, second = (event for event in events(recorder) if event.kind is Kind.WAITED)
    assert (first.value("first_tensor"), first.value("samples")) == (id(batch), 5.0)
    assert second.value("first_tensor") != second.value("first_tensor")


def test_parameters_that_change_by_hand_are_noted_once(recorder: Recorder) -> None:
    weight = torch.ones(3, requires_grad=True)
    for _ in range(8):
        (weight.sum() * 2).backward()
        with torch.no_grad():
            weight -= 0.1
    assert kinds(recorder).count(Kind.CHANGED) == 1


def test_a_hook_that_fails_ends_the_recording_and_not_the_script(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BatchSizes, "of", fail)
    train(loader())
    assert isinstance(recorder.failed, ZeroDivisionError)
    descriptions, rows = recorder.buffer.take()
    assert [row[0] for row in rows] == [Kind.BEGUN, Kind.REQUESTED]
    failures = [each.facts for each in descriptions if each.kind == "failure"]
    assert failures == [{"error": "ZeroDivisionError"}]


def test_events_of_other_threads_have_their_thread(recorder: Recorder) -> None:
    thread = threading.Thread(target=train, args=(loader(),))
    thread.start()
    thread.join()
    assert {event.thread for event in events(recorder)} == {thread.ident}


def test_workers_end_though_python_has_cleared_our_module(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator that only the end of Python frees: our traceback was on the script's standard error."""
    ended: list[str] = []
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    shut_down = dataloader._shutdown_recorded(recorder, ended.append)
    monkeypatch.setattr(dataloader, "perf_counter", None)
    monkeypatch.setattr(dataloader, "NUMBER", None)
    shut_down("the iterator")
    assert ended == ["the iterator"]


def test_a_fork_records_nothing_once_it_is_stopped(recorder: Recorder) -> None:
    def stop_and_train() -> int:
        recorder.stop()
        train(loader())
        return len(recorder.buffer.take()[1])

    assert exit_status_of(fork_doing(stop_and_train)) == 0


def test_a_fork_keeps_the_marks_that_are_its_parents() -> None:
    """To free a GPU's events in a worker would end it."""
    recorder = Recorder(Buffer())
    marks: Any = Mock()
    kept = weakref.ref(marks)
    recorder.mark_with(marks)
    assert recorder.notes
    del marks
    recorder.describe_again()
    gc.collect()
    assert (recorder.marks, recorder.notes) == (None, False)
    assert kept() is not None


@pytest.mark.parametrize(
    "name", ["described", "before_request", "backward", "stepped", "received", "work_begins"]
)
def test_whatever_fails_in_a_hook_the_script_goes_on(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recorder.on_first_work.append(lambda: None)
    recorder.count_with(lambda now_s: None)
    monkeypatch.setattr(recorder, name, lambda *args, **kwargs: 1 / 0)
    train(loader())
    assert isinstance(recorder.failed, ZeroDivisionError)


def test_a_limit_that_fails_is_none_of_the_scripts(recorder: Recorder) -> None:
    def fail() -> ThreadState | None:
        raise ZeroDivisionError

    recorder.limit_steps(StepLimit(1, fail, lambda ended: None))
    train(loader(8))
    assert isinstance(recorder.failed, ZeroDivisionError)


@pytest.mark.parametrize("limited", ["requests", "updates"])
def test_a_limit_ends_the_script_within_the_hook_that_reached_it(
    recorder: Recorder, limited: str
) -> None:
    def end(ended: ThreadState) -> None:
        raise SystemExit(ended.steps)

    recorder.limit_steps(StepLimit(2, lambda: ThreadState(2, 1), end))
    batches = loader(8) if limited == "requests" else [(torch.ones(2, 3),)] * 4
    with pytest.raises(SystemExit, match="2"):
        train(batches)  # type: ignore[arg-type]
    last = {"requests": Kind.REQUESTED, "updates": Kind.STEPPED}[limited]
    assert kinds(recorder)[-1] is last
    assert recorder.failed is None


def test_objects_are_described_once_more_for_another_reader(recorder: Recorder) -> None:
    model = torch.nn.Linear(3, 1)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)

    def numbers() -> set[float]:
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            stepping.step()
        found = events(recorder)
        devices = {event.value("device") for event in found if event.kind is Kind.BACKWARD}
        return devices | {event.object for event in found if event.kind is Kind.STEPPED}

    before = numbers()
    assert len(before) == 2
    recorder.buffer.forget()
    recorder.describe_again()
    described, _ = recorder.buffer.take()
    assert {each.number for each in described} >= before
    assert numbers() == before


def test_an_optimizer_in_the_place_of_one_that_is_gone_has_a_number_of_its_own(
    recorder: Recorder,
) -> None:
    model = torch.nn.Linear(3, 1)
    model.weight.grad = torch.ones(1, 3)
    for _ in range(20):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    stepped = [event.object for event in events(recorder) if event.kind is Kind.STEPPED]
    assert len(set(stepped)) == 20
