"""A deliberately delayed transfer, to check what is reported about it."""

from __future__ import annotations

from typing import Any

from vitprof.engine.batch import Batch
from vitprof.engine.transfer import Moved, Transfer
from vitprof.measure.devices import Device
from vitprof.measure.stopwatch import Wait


class Delayed:
    """A transfer whose copies begin after a wait of the training loop. The wait counts as part of the copy."""

    def __init__(self, transfer: Transfer, wait: Wait, device: Device) -> None:
        self._transfer, self._wait, self._device = transfer, wait, device
        self.buffer = transfer.buffer
        self.normalises = transfer.normalises
        self.stage = transfer.stage

    def place(self, storage: Any) -> Any:
        return self._transfer.place(storage)

    def __call__(self, batch: Batch) -> Moved:
        start = self._device.mark()
        self._wait.into("transfer")
        moved = self._transfer(batch)
        if moved.copy_start is not moved.copy_end:  # a transfer that copies nothing has one mark, which is still needed
            self._device.release(moved.copy_start)
        return moved._replace(copy_start=start)
