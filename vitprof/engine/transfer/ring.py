"""Memory for batches that is used again and again, page-locked where there is a GPU to copy to.

Pinning a fresh tensor for each batch can cost more than a plain copy (DESIGN.md section 6): buffers are pinned once,
when there is no free one, and come back when the device has read them.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from vitprof.engine.devices import Device, Mark
from vitprof.engine.devices.pinning import Pinning

LABEL_BYTES = 8


@dataclass(frozen=True, slots=True)
class Packed:
    """A buffer: images and, behind them, their labels, in one piece of memory that one copy takes."""

    whole: Tensor
    """(n,) uint8"""
    images: Tensor
    """In the order in which a batch's images lie in memory, (b, height, width, channels) uint8 of most loaders; the
    beginning of `whole`."""
    labels: Tensor
    """(b,) int64, the end of `whole`"""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pinning: Pinning) -> Packed:
        """Returns a new buffer for images of `shape`, page-locked if the system allows it."""
        used = prod(shape) * dtype.itemsize
        labels_at = -(-used // LABEL_BYTES) * LABEL_BYTES  # int64 is read at multiples of its size
        whole = pinning.empty((labels_at + LABEL_BYTES * shape[0],), torch.uint8)
        return cls(whole, whole[:used].view(dtype).view(shape), whole[labels_at:].view(torch.int64))

    def split(self, copy: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns images and labels in `copy`, a copy of `whole`: as many as `images`, the first of the buffer's, and
        in the same order in memory.
        """
        copied = copy[: self.images.nbytes].view(images.dtype).as_strided(images.shape, images.stride())
        labels = copy[len(copy) - LABEL_BYTES * len(self.labels) :].view(torch.int64)
        return copied, labels[: len(images)]


class Ring:
    """Buffers that loaders fill and transfers read. Taken in any thread, given back in the training loop's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._lent: dict[int, Packed] = {}
        """By address: that is how a batch's images tell which buffer they lie in."""
        self._being_read: deque[tuple[Mark, Packed]] = deque()
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[Packed]] = {}
        """By shape and type. There are two: a batch's, and that of the last one of an epoch."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory for the images of a batch, of `shape` as they lie there; nobody else has it until it is given back."""
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
        """Returns whether `images` lie in a buffer of the ring."""
        return images.data_ptr() in self._lent

    def buffer_of(self, images: Tensor) -> Packed | None:
        """Returns the buffer that `images` lie in; None where that is none of the ring's."""
        return self._lent.get(images.data_ptr())

    def give_back(self, images: Tensor, read: Mark) -> None:
        """The buffer that `images` lie in can be used again once the device has passed `read`."""
        with self._lock:
            buffer = self._lent.pop(images.data_ptr(), None)
            if buffer is not None:
                self._being_read.append((read, buffer))
