"""Marks around the copy of a batch, on a real GPU or the null device: the quickest of several steps is what no busy
machine holds up."""

import time
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor

from vitprof.analysis.arrays import Series
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.selftest.gpu.bench import Bench
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.device_columns import DeviceSteps
from vitprof.watch.core.device_step import ONE_AFTER_ANOTHER_S
from vitprof.watch.core.log import EventLog
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import NAN, Buffer, Kind
from vitprof.watch.patches import Recorder, iterables, marks
from vitprof.watch.patches.replay import ReplayPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measured,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"
    ),
]
KERNEL_S, WAIT_S, HOST_S = 4e-3, 1e-3, 1e-3
N_STEPS = 8


class Script:
    """Trains on the GPU, call by call: what hooks see is told by hand, so that nothing else works on it."""

    def __init__(self) -> None:
        self.recorder = Recorder(Buffer())
        self.installed = marks.install(self.recorder)
        where = torch.device("cuda:0")
        self.number = self.recorder.device(where)
        self.recorder.begin_marks(where)
        assert isinstance(self.recorder.marks, marks.Marks)
        self.device: CudaDevice = self.recorder.marks._device
        self.spin_s = Bench(self.device).spin(KERNEL_S)
        loader = self.recorder.describe("loader", {})
        self.iterator = self.recorder.describe("iterator", {"loader": loader})
        self.optimizer = self.recorder.describe("optimizer", {})
        self._emit(Kind.BEGUN, self.iterator, loader, time.perf_counter())

    def _emit(self, kind: Kind, number: int, *values: float) -> float:
        now_s = time.perf_counter()
        first, second, third = [*values, NAN, NAN, NAN][:3]
        self.recorder.emit((int(kind), now_s, get_ident(), number, first, second, third))
        return now_s

    def requests(self) -> None:
        self.recorder.before_request()
        self._emit(Kind.REQUESTED, self.iterator, NAN, 1.0)

    def waits(self, batch: Any) -> None:
        self.requests()
        time.sleep(WAIT_S)
        now_s = self._emit(Kind.RECEIVED, self.iterator, 4.0)
        self.recorder.received(now_s, batch)

    def trains(self) -> None:
        self.device.gate(self.spin_s)
        now_s = self._emit(Kind.BACKWARD, 0, NAN, float(self.number))
        self.recorder.backward(now_s, None)
        now_s = self._emit(Kind.STEPPED, self.optimizer, float(self.number))
        self.recorder.stepped(now_s)

    def told(self) -> Series:
        """Returns the columns of its steps."""
        self.requests()
        self._emit(Kind.EXHAUSTED, self.iterator, 0.0)
        assert self.recorder.marks is not None
        self.recorder.marks.finish()
        log = EventLog()
        log.add(*self.recorder.buffer.take())
        training = find_training(log)
        assert training is not None
        device = DeviceSteps(warmup_steps=0)
        device.add(log.events, find_steps(training).steps)
        steps, figures = device.take(training.thread, finished=True)
        return columns_of(steps, device=figures)


@pytest.fixture
def script() -> Iterator[Script]:
    enters = torch.cuda.set_stream
    script = Script()
    yield script
    script.installed.remove()
    assert script.recorder.failed is None
    assert not {"to", "cuda"} & set(vars(Tensor))
    assert torch.cuda.set_stream is enters


def pinned(*shape: int) -> Tensor:
    return torch.zeros(*shape).pin_memory()


def moved(tensor: Tensor) -> Tensor:
    return tensor.to("cuda", non_blocking=True)


def test_copies_of_the_batch_are_h2d_and_not_compute(script: Script) -> None:
    images, labels = pinned(4, 2), pinned(4)
    for _ in range(N_STEPS):
        script.waits({"images": images, "labels": [labels]})
        there, _ = moved(images), labels.to(device="cuda", non_blocking=True)
        there.to(torch.float16)
        script.trains()
    steps = script.told()
    assert len(steps["step"]) == N_STEPS
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["compute_s"].min() == pytest.approx(KERNEL_S, rel=0.1)
    assert steps["data_wait_s"].min() >= WAIT_S


def test_labels_that_are_moved_after_the_forward_pass_do_not_make_that_a_copy(
    script: Script,
) -> None:
    images, labels = pinned(4, 2), pinned(4)
    for _ in range(N_STEPS):
        script.waits((images, labels))
        moved(images)
        script.device.gate(script.spin_s)
        time.sleep(2 * ONE_AFTER_ANOTHER_S)
        moved(labels)
        script.trains()
    steps = script.told()
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["compute_s"].min() > 2 * 0.9 * KERNEL_S


def test_a_batch_that_stays_or_only_changes_its_type_has_no_copy(script: Script) -> None:
    images = pinned(4, 2)
    for _ in range(2):
        script.waits(images)
        images.to(torch.float16).to("cpu")
        moved(pinned(9))  # something else
        script.trains()
    assert script.told()["h2d_s"].tolist() == [0.0, 0.0]


def test_a_copy_on_a_stream_of_its_own_does_not_move_where_compute_begins(script: Script) -> None:
    images, stream = pinned(4, 2), torch.cuda.Stream()
    for _ in range(N_STEPS):
        script.waits(images)
        with torch.cuda.stream(stream):
            moved(images)
        script.trains()
        script.device.synchronize()
    steps = script.told()
    assert steps["h2d_s"].min() > 0
    assert (steps["compute_start_s"] < steps["h2d_start_s"]).all()


def test_a_kept_batch_is_copied_once_and_again_where_the_script_changed_it(script: Script) -> None:
    images, other, copies = pinned(4, 2), pinned(4, 2), []
    headroom = ReplayPlan()
    script.recorder.measure_headroom(headroom)
    headroom.copies.watch([images])
    for i in range(4):
        script.waits((images, other))
        copies.append(moved(images))
        if i == 2:
            copies[-1].mul_(2)
        assert moved(other) is not moved(other)
        script.trains()
    assert copies[0] is copies[1] is copies[2] is not copies[3]


@pytest.mark.parametrize("copies", ["before", "inside"])
def test_a_step_that_the_script_marks_is_timed_on_the_device(script: Script, copies: str) -> None:
    """What the host does before it and after it, 1 ms each, is not in it, and neither is the copy."""
    images = pinned(4, 2)
    for _ in range(N_STEPS):
        script.waits(images)
        if copies == "before":
            moved(images)
        time.sleep(HOST_S)
        iterables.record_mark(script.recorder, entering=True)
        if copies == "inside":
            moved(images)
        script.trains()
        iterables.record_mark(script.recorder, entering=False)
        script.device.synchronize()
        time.sleep(HOST_S)
    steps = script.told()
    assert steps["compute_s"].min() == pytest.approx(KERNEL_S, rel=0.1)
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["outside_s"][0] >= HOST_S
    # it waits in `synchronize`
    assert steps["outside_s"][1:].max() >= 2 * HOST_S + 0.9 * KERNEL_S
    assert steps["data_wait_s"].min() >= WAIT_S


def test_marks_are_used_again(script: Script) -> None:
    images, labels = pinned(4, 2), pinned(4)
    trains, other = torch.cuda.current_stream(), torch.cuda.Stream()
    for i in range(30):
        script.waits((images, labels))
        with torch.cuda.stream(other if i % 3 == 0 else trains):
            moved(images)
        moved(labels)
        if i % 5 == 0:
            time.sleep(2 * ONE_AFTER_ANOTHER_S)
            moved(images)
        if i % 4:  # fetched ahead
            for _ in range(i % 3):
                iterables.record_mark(script.recorder, entering=True)
                iterables.record_mark(script.recorder, entering=False)
            script.trains()
        script.device.synchronize()
    script.told()
    free = script.device._free
    # as many as the longest step has marks: at the next request the device has passed them
    assert len({id(event) for event in free}) == len(free) < 20
    assert script.device.n_released_twice == 0


def test_a_mark_makes_no_object_for_the_stream(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make one takes ten times as long as to record an event. Marks are in the stream that is current then."""
    other, got, stream_of = torch.cuda.Stream(), list[Any](), torch.cuda.current_stream

    def noted(where: Any = None) -> Any:
        got.append(where)
        return stream_of(where)

    monkeypatch.setattr(torch.cuda, "current_stream", noted)
    for _ in range(3):
        marked = [script.device.mark()]
        with torch.cuda.stream(other):
            script.device.gate(script.spin_s)
            marked.append(script.device.mark())
        script.device.synchronize()
    assert script.device.seconds(marked[1]) - script.device.seconds(marked[0]) > 0.9 * KERNEL_S
    # the first stream was there for the anchor
    assert sum(where == script.device.torch_device for where in got) <= 1


def test_others_know_the_method_by_its_identity(script: Script) -> None:
    assert Tensor.to is vars(Tensor)["to"]._method
    assert Tensor.cuda is torch._C.TensorBase.cuda
