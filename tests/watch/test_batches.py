"""Marks around the copy of a batch, on a stand-in for the card: tensors go to the device that holds no data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda_stand_in import COPY_S, Card
from vitprof.analysis.arrays import Series
from vitprof.measure.step_columns import derive, gather
from vitprof.watch.batches import ONE_AFTER_ANOTHER_S
from vitprof.watch.loaders import Seen
from vitprof.watch.loop import Loop
from vitprof.watch.patching import Guard
from vitprof.watch.replay import Replay

KERNEL_S, WAIT_S = 300e-6, 1e-3


class Script:
    """Trains on the card, call by call."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.card = Card()
        self.guard = Guard()
        self.loop = Loop(self.card.device(patch), self.guard, threading.RLock(), clock=lambda: self.card.now)
        self.loop.steps.confirmed = True

    def waits(self, batch: Any) -> None:
        self.loop.request(None, self.card.now, Seen({}))
        self.card.now += WAIT_S
        self.loop.receive(self.card.now, batch, None)

    def trains(self) -> None:
        self.card.launch(10e-6, KERNEL_S)
        self.loop.backward(None)

    def told(self) -> Series:
        self.loop.end(self.card.now)
        self.loop.steps._recorder.resolve()
        return derive(gather(self.loop.steps._buffer))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    inherited = Tensor.to

    def copy(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if tensor.device.type != "meta":
            script.card.copy(tensor, non_blocking=True)
        return inherited(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", copy)
    script = Script(monkeypatch)
    yield script
    script.loop.close()
    assert not script.guard.given_up
    assert vars(Tensor)["to"] is copy
    assert "cuda" not in vars(Tensor)


def test_copies_of_the_batch_are_h2d_and_not_compute(script: Script) -> None:
    images, labels = torch.zeros(4, 2), torch.zeros(4)
    for _ in range(3):
        script.waits({"images": images, "labels": [labels]})
        moved, _ = images.to("meta"), labels.to(device="meta", non_blocking=True)
        moved.to(torch.float16)
        script.trains()
    steps = script.told()
    assert steps["h2d_s"] == pytest.approx([2 * COPY_S] * 3)
    assert steps["compute_s"] == pytest.approx([KERNEL_S] * 3)
    assert steps["data_wait_s"] == pytest.approx([WAIT_S] * 3)
    assert set(steps["samples"]) == {4}


def test_what_is_not_the_batch_is_no_copy_of_it(script: Script) -> None:
    script.waits(torch.zeros(4, 2))
    torch.zeros(9).to("meta")
    script.trains()
    assert script.told()["h2d_s"] == 0.0


def test_labels_that_are_moved_after_the_forward_pass_do_not_make_that_a_copy(script: Script) -> None:
    images, labels = torch.zeros(4, 2), torch.zeros(4)
    script.waits((images, labels))
    images.to("meta")
    script.trains()
    script.card.now += 2 * ONE_AFTER_ANOTHER_S
    labels.to("meta")
    steps = script.told()
    assert steps["h2d_s"] == pytest.approx(COPY_S)
    assert steps["compute_s"] >= KERNEL_S


def test_a_batch_that_stays_or_only_changes_its_type_has_no_copy(script: Script) -> None:
    images = torch.zeros(4, 2)
    script.waits(images)
    images.to(torch.float16).to("cpu")
    script.trains()
    assert script.told()["h2d_s"] == 0.0


def test_a_copy_on_a_stream_of_its_own_does_not_move_where_compute_begins(script: Script) -> None:
    images = torch.zeros(4, 2)
    script.waits(images)
    got = script.card.now
    with script.card.within(script.card.new_stream()):
        images.to("meta")
    script.trains()
    steps = script.told()
    assert steps["h2d_s"] == pytest.approx(COPY_S)
    assert steps["compute_start_s"] == pytest.approx(got)


def test_a_kept_batch_is_copied_once_and_again_where_the_script_changed_it(script: Script) -> None:
    images = torch.zeros(4, 2)
    script.loop.steps.replay = replay = Replay(0)
    replay.keep(images)
    replay.block = 1
    for i in range(4):
        script.waits(images)
        moved = images.to("meta")
        if i == 2:
            moved.mul_(2)
        script.trains()
    assert script.card.calls.count("copy") == 2


@pytest.mark.parametrize("copies", ["before", "inside"])
def test_a_step_that_the_script_says_is_timed_on_the_device(script: Script, copies: str) -> None:
    """What the host does before it and after it, 1 ms each, is not in it, and neither is the copy."""
    images, host_s = torch.zeros(4, 2), 1e-3
    for _ in range(3):
        script.waits(images)
        if copies == "before":
            images.to("meta")
        script.card.now += host_s
        script.loop.enter(script.card.now)
        if copies == "inside":
            images.to("meta")
        script.trains()
        script.loop.leave(script.card.now)
        script.card.synchronize()
        script.card.now += host_s
    steps = script.told()
    assert steps["compute_s"] == pytest.approx([KERNEL_S] * 3, rel=0.1)
    assert steps["h2d_s"] == pytest.approx([COPY_S] * 3)
    waiting_for_the_card = KERNEL_S + (
        COPY_S if copies == "inside" else 0.0
    )  # in `synchronize`, and so outside the step
    outside = [host_s, *[2 * host_s + waiting_for_the_card] * 2]
    assert steps["outside_s"] == pytest.approx(outside, rel=0.01)
    assert steps["data_wait_s"] == pytest.approx([WAIT_S] * 3)


def test_marks_are_used_again(script: Script) -> None:
    images, labels = torch.zeros(4, 2), torch.zeros(4)
    beside = script.card.new_stream()
    for i in range(30):
        script.waits((images, labels))
        with script.card.within(beside if i % 3 == 0 else script.card.trains):
            images.to("meta")
        labels.to("meta")
        if i % 5 == 0:
            script.card.now += 2 * ONE_AFTER_ANOTHER_S
            images.to("meta")
        if i % 4:  # fetched ahead
            for _ in range(i % 3):
                script.loop.enter(script.card.now)
                script.loop.leave(script.card.now)
            script.trains()
        script.card.synchronize()
    script.told()
    free = script.loop.device._free  # type: ignore[attr-defined]
    assert len({id(mark) for mark in free}) == len(free) < 12


def test_others_know_the_method_by_its_identity(script: Script) -> None:
    assert Tensor.to is vars(Tensor)["to"]._method
    assert Tensor.cuda is torch._C.TensorBase.cuda
