"""Copies in the training loop: blocking, or non-blocking from page-locked memory."""

from __future__ import annotations

import torch

from vitprof.storage import Batch, Storage


class BlockingCopy:
    """`.to(device)`: the loop waits until the copy is done."""

    non_blocking = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def place(self, storage: Storage) -> Storage:
        return storage

    def __call__(self, batch: Batch) -> Batch:
        images, labels = batch
        if images.device == self._device:  # training on the CPU: there is nothing to copy
            return batch
        return (
            images.to(self._device, non_blocking=self.non_blocking),
            labels.to(self._device, non_blocking=self.non_blocking),
        )


class PinnedCopy(BlockingCopy):
    """`.to(device, non_blocking=True)`: the copy is queued and the loop goes on, if the batch lies in pinned memory.

    PyTorch's host allocator does not hand the pinned block out again before the copy has passed.
    """

    non_blocking = True
