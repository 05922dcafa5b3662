"""Reusable memory for batches, page-locked if there is a GPU to copy to.

Pinning a new tensor for each batch was measured to cost more than a plain copy. So each buffer is pinned only
once, when no other is free, and returns to the ring when the device has read it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from vitprof.measure.devices import Device, Mark
from vitprof.measure.devices.pinning import Pinning

LABEL_BYTES = 8


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
