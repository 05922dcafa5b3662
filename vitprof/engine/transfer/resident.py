"""No copy for each batch: the storage itself lies on the device."""

from __future__ import annotations

from typing import Any

from vitprof.engine.batch import Batch
from vitprof.engine.devices import Device
from vitprof.engine.loaders import Buffer
from vitprof.engine.transfer import Moved


class Resident:
    """Moves the storage once; its batches are made on the device."""

    normalises = False
    buffer: Buffer | None = None

    def __init__(self, device: Device) -> None:
        self._device = device

    def place(self, storage: Any) -> Any:
        return storage.to(self._device.torch_device)

    def __call__(self, batch: Batch) -> Moved:
        mark = self._device.mark()
        return Moved(batch.images, batch.labels, mark, mark, mark)
