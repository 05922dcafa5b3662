"""Batches on their way through page-locked memory: put there, copied in one piece, and the memory used again.

Whoever puts a batch there takes the CPU's time, not the copy engine's: it is the last of making a batch, and belongs
to what the loop waits for. PyTorch's DataLoader does the same in a thread, where `pin_memory` is set.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import torch
from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.devices import Device
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Stage
from vitprof.engine.transfer.ring import Ring

HOST_MEMORY = torch.device("cpu")


class Staging:
    """Puts batches into buffers of a ring, images and labels in one piece, and copies them from there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.ring = Ring(device)
        self.buffer: Buffer = self.ring.take

    def stage(self, batch: Batch) -> Batch:
        """Returns the batch in page-locked memory.

        Loaders of this process fill the ring's buffers themselves; their labels are put beside the images. What a
        DataLoader has pinned stays where it is, images and labels each by itself: to put them together would copy the
        images once more, and cost more than the second copy to the device does. PyTorch's allocator does not hand that
        memory out again before the copy has passed. Images that were made on the device stay there; they leave their
        labels alone. Where the system refuses to pin memory all stay as they are: the way through a buffer would gain
        nothing. It would not either for floats on a simulated device, for which no DataLoader pins.
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
        """Starts to copy a staged batch; returns its images and labels on the device."""
        images, labels = batch.images, batch.labels
        buffer = self.ring.buffer_of(images)
        if buffer is not None and labels.data_ptr() == buffer.labels.data_ptr():
            return buffer.split(self._device.upload(buffer.whole, non_blocking=True), images)
        return self._device.upload(images, non_blocking=True), self._device.upload(labels, non_blocking=True)

    def let_go(self, images: Tensor) -> None:
        """The memory that `images` lie in can be used again once the copies launched so far are done."""
        if self.ring.holds(images):
            self.ring.give_back(images, self._device.mark())  # a mark of its own: asked for after the recorder's


def to_pinned(ring: Ring, images: Tensor) -> Tensor:
    """Returns `images` (b, channels, height, width) in a buffer of the ring, kept in the order they lie in memory."""
    if images.is_contiguous():
        return ring.take(tuple(images.shape), images.dtype).copy_(images)
    as_stored = images.permute(0, 2, 3, 1)
    return ring.take(tuple(as_stored.shape), images.dtype).copy_(as_stored).permute(0, 3, 1, 2)


def staged(batches: Generator[Batch, None, None], stage: Stage) -> Generator[Batch, None, None]:
    """Yields each batch as `stage` leaves it; closing it closes `batches`."""
    with closing(batches):
        for batch in batches:
            yield stage(batch)
