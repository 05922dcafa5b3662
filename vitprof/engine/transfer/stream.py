"""The prefetcher: a separate CUDA stream copies and normalises a batch while the model trains on the previous one.

The loop asks for the next batch once the previous step has been queued, so the copy runs during that step's compute.
NVIDIA Apex's example asked earlier (apex issue 304) and lost that overlap.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Moved, Stage, ToInput
from vitprof.engine.transfer.normalise import as_it_is
from vitprof.engine.transfer.staging import Staging
from vitprof.measure.devices import Device, Mark, Stream

STEPS_AHEAD = 2
"""Most steps that the host may be ahead of the device. Each holds a batch there, and without a limit dozens could."""


class PrefetchStream:
    """A transfer that copies and normalises in its own stream. On the CPU there is nothing to overlap."""

    normalises = True

    def __init__(self, device: Device, to_input: ToInput) -> None:
        self._device = device
        self._to_input = to_input
        self._staging = Staging(device)
        # One stream for each transfer: two loaders in one stream would wait for each other (timm issue 2784).
        self._stream = device.stream()
        self.buffer: Buffer | None = self._staging.buffer if self._stream is not None else None
        self.stage: Stage | None = self._staging.stage if self._stream is not None else None
        self._waiting: deque[Mark] = deque()

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        if self._stream is not None and batch.images.device.type == "cpu":
            return self._prefetch(batch, self._stream)
        # There is no copy to hide, on the CPU or if the batch was decoded on the device. Normalisation counts as
        # compute, as with every other transfer.
        mark = self._device.mark()
        labels = self._device.upload(batch.labels, non_blocking=True)
        return Moved(self._to_input(batch.images), labels, mark, mark, mark)

    def _prefetch(self, batch: Batch, stream: Stream) -> Moved:
        device = self._device
        self._waiting.append(device.mark())
        if len(self._waiting) > STEPS_AHEAD:
            trained = self._waiting.popleft()
            device.wait(trained)
            device.release(trained)
        with stream.use():
            start: Mark = device.mark()
            images, labels = self._staging.upload(batch)
            end: Mark = device.mark()
            self._staging.let_go(batch.images)
            inputs = self._to_input(images)
            prepared = None if self._to_input is as_it_is else device.mark()
        stream.join(inputs, labels)
        return Moved(inputs, labels, start, end, device.mark(), prepared)
