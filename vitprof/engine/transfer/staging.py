"""Puts batches into page-locked memory and copies them from there in one piece, reusing the memory.

Putting a batch there takes time of the CPU, not of the copy engine. It is therefore the last part of making the batch,
and part of the data wait. PyTorch's DataLoader does the same in a thread if `pin_memory` is set.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import torch
from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Stage
from vitprof.engine.transfer.ring import Ring
from vitprof.measure.devices import Device

HOST_MEMORY = torch.device("cpu")


class Staging:
    """The way of batches through the buffers of a ring, images and labels in one piece."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.ring = Ring(device)
        self.buffer: Buffer = self.ring.take

    def stage(self, batch: Batch) -> Batch:
        """Returns the batch in page-locked memory.

        If a loader in this process has put the images into a buffer of the ring, only the labels are added there. Other
        images in the host's memory are copied into a buffer, with these exceptions:

        - Pinned by a DataLoader: images and labels stay where they are. Putting them together would copy the images
          once more, which costs more than a second copy to the device. PyTorch's allocator does not reuse that memory
          before the copy is done.
        - The system refuses to pin memory: a buffer would gain nothing.
        - Floats for a simulated device: no DataLoader pins those, so a buffer would gain nothing either.

        Images made on the device stay there, with their labels on the host.
        """
        images = batch.images
        if images.device != HOST_MEMORY or not len(batch.labels):
            return batch
        buffer = self.ring.buffer_of(images)
        if buffer is None:
            pinning = self._device.pinning
            if images.is_pinned() or pinning.refused or not (pinning.wanted or images.dtype == torch.uint8):
                return batch
            images = to_pinned(self.ring, images)
            buffer = self.ring.buffer_of(images)
            assert buffer is not None
        labels = buffer.labels[: len(batch.labels)]
        labels.copy_(batch.labels)
        return batch._replace(images=images, labels=labels)

    def upload(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Starts to copy a staged batch. Returns its images and labels on the device."""
        images, labels = batch.images, batch.labels
        buffer = self.ring.buffer_of(images)
        if buffer is not None and labels.data_ptr() == buffer.labels.data_ptr():
            return buffer.split(self._device.upload(buffer.whole, non_blocking=True), images)
        return self._device.upload(images, non_blocking=True), self._device.upload(labels, non_blocking=True)

    def let_go(self, images: Tensor) -> None:
        """Lets the memory that `images` are in be used again once the copies launched so far are done."""
        if self.ring.holds(images):
            self.ring.give_back(images, self._device.mark())  # a mark of its own: the recorder releases its own sooner


def to_pinned(ring: Ring, images: Tensor) -> Tensor:
    """Returns a copy of `images` (b, channels, height, width) in a buffer of the ring, in the same memory order."""
    if images.is_contiguous():
        return ring.take(tuple(images.shape), images.dtype).copy_(images)
    as_stored = images.permute(0, 2, 3, 1)
    return ring.take(tuple(as_stored.shape), images.dtype).copy_(as_stored).permute(0, 3, 1, 2)


def staged(batches: Generator[Batch, None, None], stage: Stage) -> Generator[Batch, None, None]:
    """Yields what `stage` makes of each batch. Closing this generator closes `batches`."""
    with closing(batches):
        for batch in batches:
            yield stage(batch)
