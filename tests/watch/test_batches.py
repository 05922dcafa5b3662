"""Marks around the copy of a batch, on a real GPU or the null device: the quickest of several steps is what no busy
machine holds up."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from vitprof.analysis.arrays import Series
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.measure.step_columns import derive, gather
from vitprof.selftest.gpu.bench import Bench
from vitprof.watch.batches import ONE_AFTER_ANOTHER_S
from vitprof.watch.loaders import Seen
from vitprof.watch.loop import Loop
from vitprof.watch.patching import Guard
from vitprof.watch.replay import Replay
from vitprof.watch.watcher import Watcher

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
    """Trains on the GPU, call by call."""

    def __init__(self) -> None:
        self.device = CudaDevice("cuda:0", time.perf_counter, in_use=True)
        self.spin_s = Bench(self.device).spin(KERNEL_S)
        self.guard = Guard()
        self.loop = Loop(self.device, Watcher(self.guard))
        self.loop.steps.confirmed = True

    def waits(self, batch: Any) -> None:
        self.loop.end(time.perf_counter())
        self.loop.request(None, time.perf_counter(), Seen({}))
        time.sleep(WAIT_S)
        self.loop.receive(time.perf_counter(), batch, None)

    def trains(self) -> None:
        self.device.gate(self.spin_s)
        self.loop.backward(None)

    def told(self) -> Series:
        self.loop.end(time.perf_counter())
        self.device.synchronize()
        self.loop.steps._recorder.resolve()
        return derive(gather(self.loop.steps._buffer))


@pytest.fixture
def script() -> Iterator[Script]:
    enters = torch.cuda.set_stream
    script = Script()
    yield script
    script.loop.close()
    assert not script.guard.given_up
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
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["compute_s"].min() == pytest.approx(KERNEL_S, rel=0.1)
    assert steps["data_wait_s"].min() >= WAIT_S
    assert set(steps["samples"]) == {4}


def test_labels_that_are_moved_after_the_forward_pass_do_not_make_that_a_copy(
    script: Script,
) -> None:
    images, labels = pinned(4, 2), pinned(4)
    for _ in range(N_STEPS):
        script.waits((images, labels))
        moved(images)
        script.trains()
        time.sleep(2 * ONE_AFTER_ANOTHER_S)
        moved(labels)
    steps = script.told()
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["compute_s"].min() > 0.9 * KERNEL_S


def test_a_batch_that_stays_or_only_changes_its_type_has_no_copy(script: Script) -> None:
    images = pinned(4, 2)
    script.waits(images)
    images.to(torch.float16).to("cpu")
    moved(pinned(9))  # something else
    script.trains()
    assert script.told()["h2d_s"] == 0.0


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
    assert (steps["compute_start_s"] < steps["h2d_start_s"])[
        1:
    ].all()  # of the first, it is not known which one trains


def test_a_kept_batch_is_copied_once_and_again_where_the_script_changed_it(script: Script) -> None:
    images, copies = pinned(4, 2), []
    script.loop.steps.replay = replay = Replay(0)
    replay.keep(images)
    replay.block = 1
    for i in range(4):
        script.waits(images)
        copies.append(moved(images))
        if i == 2:
            copies[-1].mul_(2)
        script.trains()
    assert copies[0] is copies[1] is copies[2] is not copies[3]


@pytest.mark.parametrize("copies", ["before", "inside"])
def test_a_step_that_the_script_says_is_timed_on_the_device(script: Script, copies: str) -> None:
    """What the host does before it and after it, 1 ms each, is not in it, and neither is the copy."""
    images = pinned(4, 2)
    for _ in range(N_STEPS):
        script.waits(images)
        if copies == "before":
            moved(images)
        time.sleep(HOST_S)
        script.loop.enter(time.perf_counter())
        if copies == "inside":
            moved(images)
        script.trains()
        script.loop.leave(time.perf_counter())
        script.device.synchronize()
        time.sleep(HOST_S)
    steps = script.told()
    assert steps["compute_s"].min() == pytest.approx(KERNEL_S, rel=0.1)
    assert 0 < steps["h2d_s"].min() < KERNEL_S / 4
    assert steps["outside_s"][0] >= HOST_S
    assert steps["outside_s"][1:].max() >= 2 * HOST_S + 0.9 * KERNEL_S  # it waits in `synchronize`
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
                script.loop.enter(time.perf_counter())
                script.loop.leave(time.perf_counter())
            script.trains()
        script.device.synchronize()
    script.told()
    free = script.device._free
    assert len({id(event) for event in free}) == len(free) < 12
    assert script.device.n_released_twice == 0


def test_a_mark_makes_no_object_for_the_stream(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make one takes ten times as long as to record an event. Marks are in the stream that is current then."""
    other, got, stream_of = torch.cuda.Stream(), [], torch.cuda.current_stream
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda where=None: got.append(where) or stream_of(where)
    )  # type: ignore[func-returns-value]
    for _ in range(3):
        marks = [script.device.mark()]
        with torch.cuda.stream(other):
            script.device.gate(script.spin_s)
            marks.append(script.device.mark())
        script.device.synchronize()
    assert script.device.seconds(marks[1]) - script.device.seconds(marks[0]) > 0.9 * KERNEL_S
    assert (
        sum(where == script.device.torch_device for where in got) <= 1
    )  # the first stream was there for the anchor


def test_others_know_the_method_by_its_identity(script: Script) -> None:
    assert Tensor.to is vars(Tensor)["to"]._method
    assert Tensor.cuda is torch._C.TensorBase.cuda
