"""Copies in the training stream: blocking, or non-blocking from page-locked memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Moved, Stage
from vitprof.engine.transfer.staging import Staging
from vitprof.measure.devices import Device


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
