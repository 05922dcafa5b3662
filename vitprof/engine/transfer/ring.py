"""Memory for batches that is used again and again, page-locked where there is a GPU to copy to.

Pinning a fresh tensor for each batch can cost more than a plain copy (DESIGN.md section 6): buffers are pinned once,
when there is no free one, and come back when the device has read them.
"""

from __future__ import annotations

import threading
from collections import deque

import torch
from torch import Tensor

from vitprof.engine.devices import Device, Mark


class Ring:
    """Buffers that loaders fill and transfers read. Taken in any thread, given back in the training loop's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pin = device.torch_device.type == "cuda"
        self._lock = threading.Lock()
        self._lent: dict[int, Tensor] = {}
        """By address: that is how a batch's images tell which buffer they lie in."""
        self._being_read: deque[tuple[Mark, Tensor]] = deque()
        self._free: dict[tuple[int, ...], list[Tensor]] = {}
        """By shape. There are two: a batch's, and that of the last one of an epoch."""

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a batch of `shape`, uint8; nobody else has it until it is given back."""
        with self._lock:
            being_read = self._being_read
            while being_read and self._device.reached(being_read[0][0]):
                mark, read = being_read.popleft()
                self._device.release(mark)
                self._free.setdefault(tuple(read.shape), []).append(read)
            free = self._free.get(shape)
            buffer = free.pop() if free else torch.empty(shape, dtype=torch.uint8, pin_memory=self._pin)
            self._lent[buffer.data_ptr()] = buffer
        return buffer

    def holds(self, images: Tensor) -> bool:
        """Returns whether `images` lie in a buffer of the ring."""
        return images.data_ptr() in self._lent

    def give_back(self, images: Tensor, read: Mark) -> None:
        """The buffer that `images` lie in can be used again once the device has passed `read`."""
        with self._lock:
            buffer = self._lent.pop(images.data_ptr(), None)
            if buffer is not None:
                self._being_read.append((read, buffer))
