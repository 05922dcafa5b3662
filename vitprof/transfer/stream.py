"""The prefetcher: a CUDA stream of its own copies and normalises a batch while the one before it trains.

The loop asks for the next batch when the step before it has been queued, so the copy runs beside that step's compute.
NVIDIA Apex's example asked before (apex issue 304) and lost that overlap.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from vitprof.batch import Batch
from vitprof.devices import Device, Mark
from vitprof.loaders import Buffer
from vitprof.transfer import Moved, ToInput
from vitprof.transfer.copy import to_pinned
from vitprof.transfer.ring import Ring

AHEAD = 2
"""Steps the host may be ahead of the device: each holds a batch there, and without a bound it could be dozens."""


class PrefetchStream:
    """Copy and normalisation in a stream of this transfer's own; on the CPU there is nothing to overlap."""

    normalises = True

    def __init__(self, device: Device, to_input: ToInput) -> None:
        self._device = device
        self._to_input = to_input
        cuda = device.torch_device.type == "cuda"
        self._ring = Ring(device)
        self.buffer: Buffer | None = self._ring.take if cuda else None
        # One stream for each transfer: two loaders in one stream would wait for each other (timm issue 2784).
        self._stream = torch.cuda.Stream(device.torch_device) if cuda else None  # type: ignore[no-untyped-call]
        self._waiting: deque[torch.cuda.Event] = deque()

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        if self._stream is not None and batch.images.device.type == "cpu":
            return self._prefetch(batch, self._stream)
        # There is no copy to hide: on the CPU, or made on the device (DALI). Normalisation counts as compute, as it
        # does with every other transfer.
        mark = self._device.mark()
        labels = batch.labels.to(self._device.torch_device, non_blocking=True)
        return Moved(self._to_input(batch.images), labels, mark, mark, mark)

    def _prefetch(self, batch: Batch, stream: torch.cuda.Stream) -> Moved:
        trains = torch.cuda.current_stream(self._device.torch_device)
        trained = torch.cuda.Event()  # type: ignore[no-untyped-call]
        trained.record(trains)
        self._waiting.append(trained)
        if len(self._waiting) > AHEAD:
            self._waiting.popleft().synchronize()
        images = batch.images if batch.images.is_pinned() else to_pinned(self._ring, batch.images)
        with torch.cuda.stream(stream):
            start: Mark = self._device.mark()
            on_device = images.to(self._device.torch_device, non_blocking=True)
            labels = batch.labels.to(self._device.torch_device, non_blocking=True)
            end: Mark = self._device.mark()
            if self._ring.holds(images):
                self._ring.give_back(images, self._device.mark())
            on_device = self._to_input(on_device)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
        trains.wait_event(done)
        # The allocator must not hand this memory to the copying stream again while the training stream reads it.
        on_device.record_stream(trains)
        labels.record_stream(trains)
        return Moved(on_device, labels, start, end, self._device.mark())
