"""Copies in the training loop's stream: blocking, or non-blocking out of page-locked memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.devices import Device
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Moved
from vitprof.engine.transfer.ring import Ring

HOST_MEMORY = torch.device("cpu")


class BlockingCopy:
    """`.to(device)`: the loop waits until the copy is done."""

    normalises = False
    buffer: Buffer | None = None

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
        # Images that were decoded on the device stay as they are; their labels come from the host all the same.
        images, labels = self._upload(batch.images), self._upload(batch.labels)
        end = self._mark()
        return Moved(images, labels, start, end, end)


class PinnedCopy(BlockingCopy):
    """`.to(device, non_blocking=True)` out of pinned memory: the copy is queued and the loop goes on.

    Loaders of this process fill the ring's buffers themselves. What a DataLoader has pinned is copied as it is:
    PyTorch's allocator does not hand that memory out again before the copy has passed. The rest goes through a buffer.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ring = Ring(device)
        self._in_use: Tensor | None = None
        self.buffer = self._ring.take

    def __call__(self, batch: Batch) -> Moved:
        images = batch.images
        start = self._mark()
        if self._at_once:
            # Training on the CPU reads the buffer itself: it is free when the next batch has taken its place.
            if self._in_use is not None:
                self._ring.give_back(self._in_use, start)
            self._in_use = images if self._ring.holds(images) else None
            return Moved(images, batch.labels, start, start, start)
        if images.device == HOST_MEMORY and not images.is_pinned():
            images = to_pinned(self._ring, images)
        on_device = self._upload(images, non_blocking=True)
        labels = self._upload(batch.labels, non_blocking=True)
        end = self._mark()
        if self._ring.holds(images):
            self._ring.give_back(images, self._mark())  # a mark of its own: the ring asks for it after the recorder
        return Moved(on_device, labels, start, end, end)


def to_pinned(ring: Ring, images: Tensor) -> Tensor:
    """`images` in a buffer of the ring: uint8 (b, c, h, w), kept in the order they lie in memory; else as they are."""
    if images.element_size() != 1:
        return images
    as_stored = images.permute(0, 2, 3, 1)
    buffer = ring.take(tuple(as_stored.shape))
    buffer.copy_(as_stored)
    return buffer.permute(0, 3, 1, 2)
