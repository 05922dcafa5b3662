"""Copies in the training stream: blocking, or non-blocking from page-locked memory."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.engine.transfer.contract import Moved, Stage, ToInput
from vitprof.engine.transfer.normalise import as_it_is
from vitprof.engine.transfer.pinned_buffers import Staging
from vitprof.measure.devices import Device, Mark, Stream


class BlockingCopy:
    """A transfer with `.to(device)`: the loop waits until the copy is done."""

    normalises = False
    buffer: Buffer | None = None
    stage: Stage | None = None

    def __init__(self, device: Device) -> None:
        self._mark = device.mark
        self._upload = device.upload
        self._at_once = device.immediate

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:  # it is the CPU: there is nothing to copy
            return Moved(batch.images, batch.labels, start, start, start)
        # Images decoded on the device stay where they are, but their labels still come from the host.
        images, labels = self._upload(batch.images), self._upload(batch.labels)
        end = self._mark()
        return Moved(images, labels, start, end, end)


class PinnedCopy(BlockingCopy):
    """A transfer with `.to(device, non_blocking=True)` from pinned memory: the copy is queued and the loop goes on."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._staging = Staging(device)
        self._in_use: Tensor | None = None
        self.buffer = self._staging.buffer
        self.stage = None if device.immediate else self._staging.stage

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:
            # Training on the CPU reads the buffer itself: it is free once the next batch has replaced it.
            if self._in_use is not None:
                self._staging.ring.give_back(self._in_use, start)
            self._in_use = batch.images if self._staging.ring.holds(batch.images) else None
            return Moved(batch.images, batch.labels, start, start, start)
        images, labels = self._staging.upload(batch)
        end = self._mark()
        self._staging.let_go(batch.images)
        return Moved(images, labels, start, end, end)


STEPS_AHEAD = 2
"""Most steps that the host may be ahead of the device. Each holds a batch there, and without a limit dozens could."""


class PrefetchStream:
    """A transfer that copies and normalises in its own stream. On the CPU there is nothing to overlap."""

    normalises = True

    def __init__(self, device: Device, to_input: ToInput) -> None:
        self._device = device
        self._to_input = to_input
        self._staging = Staging(device)
        # One stream for each transfer: two loaders in one stream would wait for each other (timm issue 2784).
        self._stream = device.stream()
        self.buffer: Buffer | None = self._staging.buffer if self._stream is not None else None
        self.stage: Stage | None = self._staging.stage if self._stream is not None else None
        self._waiting: deque[Mark] = deque()

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        if self._stream is not None and batch.images.device.type == "cpu":
            return self._prefetch(batch, self._stream)
        # There is no copy to hide, on the CPU or if the batch was decoded on the device. Normalisation counts as
        # compute, as with every other transfer.
        mark = self._device.mark()
        labels = self._device.upload(batch.labels, non_blocking=True)
        return Moved(self._to_input(batch.images), labels, mark, mark, mark)

    def _prefetch(self, batch: Batch, stream: Stream) -> Moved:
        device = self._device
        self._waiting.append(device.mark())
        if len(self._waiting) > STEPS_AHEAD:
            trained = self._waiting.popleft()
            device.wait(trained)
            device.release(trained)
        with stream.use():
            start: Mark = device.mark()
            images, labels = self._staging.upload(batch)
            end: Mark = device.mark()
            self._staging.let_go(batch.images)
            inputs = self._to_input(images)
            prepared = None if self._to_input is as_it_is else device.mark()
        stream.join(inputs, labels)
        return Moved(inputs, labels, start, end, device.mark(), prepared)
