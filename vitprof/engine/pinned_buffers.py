"""Puts batches into page-locked memory and copies them from there in one piece, reusing the memory.

Putting a batch there takes time of the CPU, not of the copy engine. It is therefore the last part of making the batch,
and part of the data wait. PyTorch's DataLoader does the same in a thread if `pin_memory` is set.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.measure.devices import Device, Mark, Pinning

LABEL_BYTES = 8

Stage = Callable[[Batch], Batch]
"""A batch as a loader made it -> the batch in the memory that its copy starts from. Takes time only on the host."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A buffer: images and, after them, their labels, in one piece of memory, so that one copy moves both."""

    whole: Tensor
    """(n,) uint8"""
    images: Tensor
    """The beginning of `whole`, in the memory order of a batch's images: for most loaders (b, height, width, channels)
    uint8."""
    labels: Tensor
    """The end of `whole`, (b,) int64."""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pinning: Pinning) -> Packed:
        """Returns a new buffer for images of `shape`, page-locked if the system allows it."""
        used = prod(shape) * dtype.itemsize
        labels_at = -(-used // LABEL_BYTES) * LABEL_BYTES  # int64 must be aligned to its size
        whole = pinning.empty((labels_at + LABEL_BYTES * shape[0],), torch.uint8)
        return cls(whole, whole[:used].view(dtype).view(shape), whole[labels_at:].view(torch.int64))

    def split(self, copy: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the images and labels in `copy`, a copy of `whole`.

        `images` are the first ones of this buffer; the result has the same number of them, in the same memory order.
        """
        copied = copy[: self.images.nbytes].view(images.dtype).as_strided(images.shape, images.stride())
        labels = copy[len(copy) - LABEL_BYTES * len(self.labels) :].view(torch.int64)
        return copied, labels[: len(images)]


class Ring:
    """Buffers that loaders fill and transfers read. Any thread takes them; the training loop's gives them back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._lent: dict[int, Packed] = {}
        """By the images' address, which identifies the buffer that a batch is in."""
        self._being_read: deque[tuple[Mark, Packed]] = deque()
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[Packed]] = {}
        """By shape and dtype. There are usually two: that of a batch, and that of an epoch's last batch."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        """Returns memory for a batch's images, of `shape` in memory order. It is reserved until it is given back."""
        with self._lock:
            being_read = self._being_read
            while being_read and self._device.reached(being_read[0][0]):
                mark, read = being_read.popleft()
                self._device.release(mark)
                self._free.setdefault((tuple(read.images.shape), read.images.dtype), []).append(read)
            free = self._free.get((shape, dtype))
            buffer = free.pop() if free else Packed.of(shape, dtype, self._device.pinning)
            self._lent[buffer.images.data_ptr()] = buffer
        return buffer.images

    def holds(self, images: Tensor) -> bool:
        """Returns whether `images` are in a buffer that the ring has lent."""
        return images.data_ptr() in self._lent

    def buffer_of(self, images: Tensor) -> Packed | None:
        """Returns the buffer that `images` are in; None if it is not one that the ring has lent."""
        return self._lent.get(images.data_ptr())

    def give_back(self, images: Tensor, read: Mark) -> None:
        """Returns the buffer that `images` are in to the ring, to be used again once the device has passed `read`."""
        with self._lock:
            buffer = self._lent.pop(images.data_ptr(), None)
            if buffer is not None:
                self._being_read.append((read, buffer))


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
